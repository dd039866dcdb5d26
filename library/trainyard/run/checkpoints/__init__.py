"""Commits of checkpoints to storage, for the trainer and programs.

`checkpoint_names` has paths and ids; `fence_file` has the fence of a folder. `program_manifest` has
the manifest of a program's checkpoint; `saved_files` has the files. `save_messages` and
`program_save` implement the save by all ranks of a program. Imports only the standard library.
"""

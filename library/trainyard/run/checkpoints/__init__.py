"""Commits of checkpoints to storage, for the trainer and programs.

`checkpoint_names` has paths and ids, and `fence_file` the fence of a folder. `program_manifest` has
the manifest of a program's checkpoint, and `saved_files` the files. `save_messages` and
`program_save` have the save by all ranks of a program. Imports only the standard library.
"""

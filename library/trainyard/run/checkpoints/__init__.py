"""Commits of checkpoints to storage, for trainer and programs. Imports only the standard library.

`checkpoint_names` has paths and ids, `fence_file` the fence of a folder, `program_manifest` the
record of a program's checkpoint, `saved_files` its files, `save_messages` and `program_save` the
save by all ranks of a program.
"""

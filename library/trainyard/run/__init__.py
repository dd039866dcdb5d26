"""The run directory as an API. The package imports only the standard library.

`directory` has the names of the files; `records` and `failures` define the contents of the files.
`record_files` and `control_files` write and find files; `atomic` has the atomic writes.
"""

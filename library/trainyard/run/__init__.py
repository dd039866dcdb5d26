"""The run directory as an API. It imports only the standard library.

`directory` has the names of the files, and `records` and `failures` the format of their contents.
`record_files` and `control_files` write and find files; `atomic` has the atomic writes.
"""

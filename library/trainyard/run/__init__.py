"""The run directory as an API. Imports only the standard library.

`directory` has the names of the files, `records` and `failures` their contents, `record_files` and
`control_files` the functions that write and find them, `atomic` the atomic writes.
"""

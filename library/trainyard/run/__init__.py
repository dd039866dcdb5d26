"""The run directory as an API. Imports nothing but the standard library.

`directory` has the names of the files, `records` and `failures` what they hold, `record_files` and
`control_files` the functions that write and find them, `atomic` how a file appears whole.
"""

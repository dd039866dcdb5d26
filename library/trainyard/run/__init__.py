"""The run directory as an API. Imports nothing but the standard library."""

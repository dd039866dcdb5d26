"""Cost of `run.log` for a script, and for the server."""

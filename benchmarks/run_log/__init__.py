"""What `run.log` costs a script, and what the server does with it."""

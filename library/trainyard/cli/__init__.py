"""The `trainyard` command: Typer for its arguments, Rich for what it shows."""

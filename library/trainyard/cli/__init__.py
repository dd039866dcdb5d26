"""The `trainyard` command: Typer parses its arguments, Rich renders its output."""

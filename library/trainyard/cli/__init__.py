"""The `trainyard` command: Typer for its arguments, Rich for what it shows."""

from __future__ import annotations

from trainyard.cli.app import main

__all__ = ["main"]

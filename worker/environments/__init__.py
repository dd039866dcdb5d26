"""Environments of programs: what a lock needs, where it is installed, and the operation for it."""

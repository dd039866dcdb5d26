"""Environments of programs: what a lock needs, where it is installed, and its build operation."""

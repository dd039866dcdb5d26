"""Environments of programs: requirements of a lock, build, and installed packages."""

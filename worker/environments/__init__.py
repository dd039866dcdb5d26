"""Environments of programs: the requirements of a lock, the installed packages, and the build."""

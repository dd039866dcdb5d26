"""Launches a share of an attempt: the command lines and environments of its ranks."""

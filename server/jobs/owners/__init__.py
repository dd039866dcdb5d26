"""Owners of jobs: the transfer to another user."""

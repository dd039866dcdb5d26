"""Nodes from machines that the system's `ssh` reaches."""

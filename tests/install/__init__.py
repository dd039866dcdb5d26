"""Installations of the wheels on a bare machine: the first job, an upgrade, and the way back."""

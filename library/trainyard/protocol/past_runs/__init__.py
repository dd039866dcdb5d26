"""Runs that other tools recorded."""

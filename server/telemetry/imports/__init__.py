"""Runs that other tools recorded, as jobs that have ended."""

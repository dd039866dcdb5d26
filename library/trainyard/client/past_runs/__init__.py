"""Readers of runs that other tools recorded, and their import."""

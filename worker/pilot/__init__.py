"""Runs the worker as a pilot, inside the allocation of another engine (docs/sources.md)."""

"""Checkpoints: the catalog of what was committed."""

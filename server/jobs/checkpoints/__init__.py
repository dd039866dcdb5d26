"""Checkpoints: the catalog, retention, and commands of people (docs/lifecycle.md, 36-41)."""

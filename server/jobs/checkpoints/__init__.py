"""Checkpoints: the catalog, retention, and commands of people (docs/lifecycle-operations.md, 36-41)."""

"""Checkpoints: catalog, retention, commands of people (docs/lifecycle-operations.md, 36-41)."""

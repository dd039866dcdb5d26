"""Checkpoints: catalog, retention and people's commands (docs/lifecycle-operations.md, 36-41)."""

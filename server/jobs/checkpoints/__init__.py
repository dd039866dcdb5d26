"""Checkpoints: the catalog, retention, and what people do with them (docs/lifecycle.md, 36-41)."""

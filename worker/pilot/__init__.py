"""The worker as a pilot: inside another engine's allocation (docs/sources.md)."""

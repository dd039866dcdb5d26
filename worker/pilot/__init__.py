"""The worker as a pilot: inside an allocation of another engine (docs/sources.md)."""

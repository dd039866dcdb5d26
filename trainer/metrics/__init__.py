"""The records of a run: metrics, events and profiles, and their measurement."""

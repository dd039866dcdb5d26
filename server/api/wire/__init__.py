"""Limits of connections and bytes, below the level of requests: number, size and time."""

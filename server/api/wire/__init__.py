"""Limits on connections, below the level of requests: their number, bytes and time."""

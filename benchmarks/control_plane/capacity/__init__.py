"""Capacity of the real server: reports, submissions and heartbeats, from one other process."""

"""Decisions that one process makes at a time: rounds, sizes, supply and retention; no routes."""

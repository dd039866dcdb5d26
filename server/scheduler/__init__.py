"""Decisions of one process at a time, without routes: rounds, sizes, supply and retention."""

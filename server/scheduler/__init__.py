"""Decisions of the one leading process, without routes: rounds, sizes, supply and retention."""

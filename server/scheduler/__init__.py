"""Decisions of the leading scheduler: rounds, sizes of jobs, supply of nodes, and retention."""

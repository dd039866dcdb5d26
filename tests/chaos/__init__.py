"""Faults of every part of a cluster, one at a time, each with its predicted outcome."""

"""Elastic jobs: they start on free slots, and the scheduler changes their size."""

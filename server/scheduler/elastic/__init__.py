"""Elastic jobs: they start on what is free, and the scheduler changes their size."""

"""Advice: what slows a job, by its own records (docs/advice.md)."""

"""Advice: findings, from the records of a job, on what slows the job (docs/advice.md)."""

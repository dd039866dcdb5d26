"""Advice: findings on what slows a job, from the job's records (docs/advice.md)."""

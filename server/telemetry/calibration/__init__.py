"""Calibrates predictions of step time and memory with the records of finished runs."""

"""Calibrates predictions of step time and memory with finished runs."""

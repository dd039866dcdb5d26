"""Measures a run and writes its records: metrics, events and profiles."""

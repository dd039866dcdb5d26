"""Figures of the start of an attempt."""

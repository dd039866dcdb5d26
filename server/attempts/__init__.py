"""Attempts: what nodes claim, report on and end."""

"""Waiting jobs, with groups, order and expected starts."""

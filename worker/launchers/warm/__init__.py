"""Launches that fork ranks from a process that has imported torch, so that no rank imports it."""

"""Launches that fork the ranks from a process that has imported torch, so that none imports it."""

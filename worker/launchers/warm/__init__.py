"""Launches whose ranks are forked from a process that has imported torch: no rank imports it."""

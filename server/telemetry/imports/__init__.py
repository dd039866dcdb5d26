"""Imports runs of other tools as ended jobs."""

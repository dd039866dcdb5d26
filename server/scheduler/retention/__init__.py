"""Retention: every minute, deletes a bounded number of unneeded rows of each kind."""

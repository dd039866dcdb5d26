"""Retention: deletes rows that are no longer needed, a bounded number of each kind every minute."""

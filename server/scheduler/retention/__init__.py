"""Upkeep: deletes what is no longer needed, a bounded part of each kind every minute."""

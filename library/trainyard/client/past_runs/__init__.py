"""Reads runs of other tools, and imports them."""

"""Formats of other tools that programs and imports have in common."""

"""Formats of other tools, which both programs and imports use."""

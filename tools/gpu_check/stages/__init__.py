"""The checks, with one stage or a part of one per module."""

"""The checks themselves, one stage or a part of one a module."""

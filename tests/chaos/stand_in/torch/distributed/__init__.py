"""The launcher alone."""

"""Calls of `Client`, by noun."""

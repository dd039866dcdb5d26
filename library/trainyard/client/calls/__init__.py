"""Calls of `Client`, one module for each kind of object."""

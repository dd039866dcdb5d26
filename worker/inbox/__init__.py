"""Receives the worker's messages from a broker, or by long polls of the server."""

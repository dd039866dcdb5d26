"""Receives the worker's messages, through the broker or by long polls of the server."""

"""Logs of ranks: stored in blocks, read and searched by line."""

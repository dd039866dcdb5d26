"""Logs of ranks, stored in blocks, and read and searched by line."""

"""Connections and bytes, before there is a request: how many, how large, how slow."""

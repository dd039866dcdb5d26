"""Ingestion of reports: each is parsed, stored once and passed to its subscribers."""

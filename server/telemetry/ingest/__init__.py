"""Ingestion of reports: each report is parsed, stored once and sent to its subscribers."""

"""Attempts: launch, lease, end, retry, lineage and parent checkpoint."""

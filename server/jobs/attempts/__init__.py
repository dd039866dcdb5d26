"""Attempts: launch, lease, end, and what follows; lineage and parent checkpoint."""

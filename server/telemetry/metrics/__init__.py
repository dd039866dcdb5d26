"""Metrics: stored points, charts, comparisons and the continuity check."""

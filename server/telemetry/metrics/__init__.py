"""Metrics: the stored points, charts, comparisons and the continuity check."""

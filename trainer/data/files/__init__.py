"""Text files of a dataset: their formats, sources, and held-out windows."""

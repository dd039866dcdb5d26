"""Text files of a dataset: their formats, their sources, and held-out windows."""

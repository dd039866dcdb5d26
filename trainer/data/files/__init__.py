"""Text files of a dataset: formats, sources and held-out windows."""

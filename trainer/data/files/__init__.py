"""Text files of a dataset: their formats, sources, and a share that is held out."""

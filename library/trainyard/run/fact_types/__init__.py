"""Facts of a run: configuration, summary and tags from its script."""

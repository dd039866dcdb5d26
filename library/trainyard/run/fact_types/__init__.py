"""Facts of a run: the configuration, the summary and the tags that a script gives it."""

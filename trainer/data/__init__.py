"""Text to micro-batches: the same sequences in the same order on any number of ranks."""

"""From text to micro-batches: equal sequences in equal order on any number of ranks."""

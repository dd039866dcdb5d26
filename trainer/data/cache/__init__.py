"""Token cache: token ids of a text on disk; several processes build it once per node."""

"""Chunks of a checkpoint: division of tensors, the writer of each chunk, and its place."""

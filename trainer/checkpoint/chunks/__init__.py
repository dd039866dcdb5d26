"""Chunks of a checkpoint: division of tensors, and the writer and the place of each chunk."""

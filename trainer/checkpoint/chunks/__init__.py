"""Chunks of a checkpoint: how tensors are divided, who writes each chunk, and its place."""

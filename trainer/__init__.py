"""Trains under torchrun: uses files, other ranks and the bucket of its checkpoints."""

"""Writes checkpoints: assigns tensors to ranks, then stages, hashes, syncs and commits them."""

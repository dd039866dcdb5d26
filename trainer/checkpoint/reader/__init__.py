"""Loads checkpoints: assigns bytes and tensors to ranks, reads them, and verifies every byte."""

"""Weights in the hub's format: loaded with any layout, and exported from checkpoints."""

"""Weights in the hub's format: loaded into any layout, exported from checkpoints."""

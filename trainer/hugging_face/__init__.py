"""Weights in the hub's format: read into any layout, written from checkpoints."""

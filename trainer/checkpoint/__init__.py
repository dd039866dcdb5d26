"""Checkpoints: complete, verified, and loadable on any other world size and layout."""

"""Checkpoints: complete, verified, and loadable with any other world size and layout."""

"""Counts of one training step, of ours and of torchtitan."""

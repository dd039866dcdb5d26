"""Counts of one training step, ours and those of torchtitan."""

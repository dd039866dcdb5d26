"""Chores: what is done to checkpoints on storage, and which of them may go (lifecycle, 31-41)."""

"""The continuity check: whether a resumed attempt continues from its checkpoint."""

"""Write checkpoints: who writes which tensors, staged, hashed, synced and committed."""

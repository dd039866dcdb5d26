"""Load checkpoints: who reads which bytes, into which tensors, and every byte verified."""

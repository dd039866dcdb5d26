"""Load checkpoints: who reads which bytes into which tensors, with every byte verified."""

"""The built-in trainer, run by torchrun; it uses only files, other ranks and its bucket."""

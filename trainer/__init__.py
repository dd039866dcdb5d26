"""The built-in trainer, run by torchrun; it uses files, other ranks and a bucket, but no server."""

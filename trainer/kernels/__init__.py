"""Kernels of a GPU, in Triton; each has a plain version elsewhere."""

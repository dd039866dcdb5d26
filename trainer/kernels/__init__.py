"""Kernels of a GPU, in Triton, each with a plain version elsewhere; and the products of a CPU."""

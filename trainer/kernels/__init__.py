"""Triton kernels for a GPU, each with a plain version for CPUs; and a CPU's matrix products."""

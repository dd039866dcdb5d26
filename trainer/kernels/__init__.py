"""Triton kernels for GPUs, each with a plain version for CPUs; fast matrix products for CPUs."""

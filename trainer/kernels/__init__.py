"""Triton kernels for GPUs, with plain versions for CPUs; fast matrix products for CPUs."""

"""Checks of the trainer on one GPU, for a machine without network: docs/gpu-check.md."""

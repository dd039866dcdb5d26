"""Reads torchtitan's checkpoints."""

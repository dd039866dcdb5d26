"""Environments of programs: reads lock files, builds environments, and stores them."""

"""The jobs that wait: their groups, their order, and when they are expected to start."""

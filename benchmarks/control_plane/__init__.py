"""Benchmarks of the control plane: server, scheduler, stream, and from submission to a step."""

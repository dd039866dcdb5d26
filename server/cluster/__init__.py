"""Nodes and what they offer: registration, slots, ranks, projects, and pure placement."""

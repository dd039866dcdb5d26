"""Nodes and what they offer: registration, slots, sources, projects, and pure placement."""

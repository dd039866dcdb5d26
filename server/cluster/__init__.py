"""Nodes and their capacity: registration, slots, sources, projects, and pure placement."""

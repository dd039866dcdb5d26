"""Nodes with their registration and slots, sources of nodes, projects, and pure placement."""

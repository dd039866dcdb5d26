"""Commands for node sources, and for the projects that share the nodes."""

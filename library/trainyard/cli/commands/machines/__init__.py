"""Commands on node sources, and on the projects that share the nodes."""

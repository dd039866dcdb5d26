"""Commands about sources of nodes, and the projects that share the machines."""

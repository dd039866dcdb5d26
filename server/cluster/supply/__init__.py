"""Sources of nodes: requests for nodes, what their engines report, and pilots that join."""

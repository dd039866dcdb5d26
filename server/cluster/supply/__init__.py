"""Sources of nodes: requests for nodes, reports of their engines, and pilots that join."""

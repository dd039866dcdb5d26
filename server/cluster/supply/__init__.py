"""Sources of nodes: requests for nodes, reports about their engines, and pilots that join."""

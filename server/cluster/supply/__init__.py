"""Sources of nodes: requests for nodes, reports of provisioners, and pilots that join."""

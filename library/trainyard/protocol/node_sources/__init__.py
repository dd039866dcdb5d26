"""Sources of nodes: messages of their provisioners and pilots, and views."""

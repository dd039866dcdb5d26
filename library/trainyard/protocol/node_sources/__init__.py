"""Sources of nodes: messages of provisioners and pilots, and views."""

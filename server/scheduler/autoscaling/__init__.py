"""Supply: node requests, withdrawal of requests, and nodes that leave."""

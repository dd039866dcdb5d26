"""Supply: requests for nodes, their withdrawal, and nodes that leave."""

"""A supervisor that waits for the node's next launch, and how it gets that launch."""

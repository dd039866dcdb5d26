"""The idle process, which waits for the node's next launch, and the launch's hand-over."""

"""A supervisor that waits for the node's next launch, and the hand-over of that launch."""

"""The idle process, which waits for the node's next launch, and the hand-over of the launch."""

"""One attempt: the order of its parts, the steps, and the work between steps."""

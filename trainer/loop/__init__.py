"""One attempt: the sequence of its parts, the steps, and the work between steps."""

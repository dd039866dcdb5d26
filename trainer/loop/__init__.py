"""One attempt: its recipe in order, the steps, and the work between them."""

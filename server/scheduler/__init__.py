"""What one process at a time decides: the queue, rounds, sizes, supply and retention."""

"""The demonstration: one job on changing numbers of ranks, laid over an uninterrupted run."""

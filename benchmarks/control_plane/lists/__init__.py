"""Times of the lists of jobs."""

"""Facts of jobs: configuration and summary."""

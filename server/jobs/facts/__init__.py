"""Facts of jobs: their configuration and their summary."""

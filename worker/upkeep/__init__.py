"""What a worker looks after between jobs: its roots, and run directories of ended jobs."""

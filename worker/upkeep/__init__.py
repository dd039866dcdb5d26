"""Work of a worker between jobs: its roots, and run directories of ended jobs."""

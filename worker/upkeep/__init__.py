"""Work of a worker between jobs: storage roots, run directories of ended jobs, idle process."""

"""Work between jobs: storage roots, run directories of ended jobs, and the idle process."""

"""Parameters, FLOPs, memory and legal layouts of a job, computed before the job runs."""

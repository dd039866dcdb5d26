"""Parameters, FLOPs, memory and legal layouts of a job, before it runs."""

"""Provisioner: reaches the engines (Slurm, Kubernetes, ssh) that nodes come from."""

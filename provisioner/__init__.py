"""Provisioner: reaches the engines (Slurm, Kubernetes, ssh) that supply nodes."""

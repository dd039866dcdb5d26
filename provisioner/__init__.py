"""The provisioner: calls the engines (Slurm, Kubernetes, ssh) that supply nodes."""

"""Projects: the weights and quotas by which jobs share the cluster (docs/projects.md)."""

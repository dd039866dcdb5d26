"""Nodes out of a Kubernetes cluster: one indexed Job for each request."""

"""Nodes from a Kubernetes cluster: one indexed Job per request."""

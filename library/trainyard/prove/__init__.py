"""Proof on a user's own machines: jobs, measurements of ranks, and figures with bounds."""

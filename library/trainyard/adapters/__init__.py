"""Exact data and a job's calls for training libraries; each module imports its library.

Nothing else of `trainyard` imports this package. The contract: docs/adapters.md.
"""

"""Exact data and a job's calls for training libraries; each module imports its library.

No other module of `trainyard` imports this package. The contract: docs/adapters.md.
"""

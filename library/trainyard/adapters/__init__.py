"""Adapters that connect training libraries to exact data and to the calls of a job.

A module may import the library that it adapts. No other module of `trainyard` imports this package.
The contract is in docs/adapters.md.
"""

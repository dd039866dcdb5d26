"""Adapters that give training libraries exact data and a job's calls.

Each module imports the library that it adapts. No other module of `trainyard` imports this package.
The contract is in docs/adapters.md.
"""

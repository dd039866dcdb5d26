"""Images, histograms and files that a script logs: recognised by protocol, written by a thread.

Imports nothing but the standard library. The contract: docs/artifacts.md.
"""

"""Images, histograms and files that a script logs: detected by protocol, written by a thread.

Imports only the standard library. The contract: docs/artifacts.md.
"""

"""Images, histograms and files that a script logs; a thread writes them to the run directory.

Imports only the standard library; arrays and images of other libraries are recognized by their
attributes. docs/artifacts.md has the contract.
"""

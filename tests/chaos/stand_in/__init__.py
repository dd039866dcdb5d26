"""An installation of `torch` and `trainer` that takes milliseconds to start.

First on the PYTHONPATH of a node's worker, it makes the real supervisor run a launcher and ranks of
the standard library (and xxhash, the checksum of the manifests); operations are the real ones.
"""

"""The ranks of an attempt: which are slower than their peers, and which one a hang waits for."""

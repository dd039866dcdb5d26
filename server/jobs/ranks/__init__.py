"""The ranks of an attempt: stragglers, and the rank that a hang waits for."""

"""The ranks of an attempt: stragglers, and the late rank of a hang."""

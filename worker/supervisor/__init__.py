"""The detached process of an attempt, which owns its ranks, and reports until the end is stored."""

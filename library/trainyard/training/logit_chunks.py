"""The chunk of logits that exists at once: trainer allocates by it, planner counts with it."""

from __future__ import annotations

LOGITS_PER_CHUNK = 1 << 27
"""Logits that exist at once, at most: 512 MiB in float32."""


def tokens_per_chunk(vocab_size: int) -> int:
    """Return how many tokens' logits are computed at once; `vocab_size` is that of one rank."""
    return max(LOGITS_PER_CHUNK // vocab_size, 1)

"""The loss over the vocabulary: tokens that it leaves out, and logits that it holds at once."""

from __future__ import annotations

NO_LABEL = -100
"""Label of a token that the loss leaves out; torch's own default."""

LOGITS_PER_CHUNK = 1 << 27
"""Logits that exist at once, at most: 512 MiB in float32."""


def tokens_per_chunk(vocab_size: int) -> int:
    """Return how many tokens' logits are computed at once; `vocab_size` is that of one rank."""
    return max(LOGITS_PER_CHUNK // vocab_size, 1)

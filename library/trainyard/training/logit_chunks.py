"""The chunk of logits that exists at once: trainer allocates by it, planner counts with it."""

from __future__ import annotations

LOGITS_PER_CHUNK = 1 << 27
"""Logits that exist at once, at most: 512 MiB in float32."""
FUSED_LOGITS_PER_CHUNK = 1 << 30
"""The same on a GPU, whose kernels compute the loss without a float32 copy: 2 GiB in bfloat16."""


def tokens_per_chunk(vocab_size: int, *, fused: bool) -> int:
    """Return how many tokens' logits are computed at once.

    Args:
        vocab_size: that of one rank.
        fused: whether the loss is computed by the kernels of a GPU.
    """
    most = FUSED_LOGITS_PER_CHUNK if fused else LOGITS_PER_CHUNK
    return max(most // vocab_size, 1)

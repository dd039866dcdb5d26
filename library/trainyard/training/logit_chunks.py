"""Size of the chunks in which trainer and planner compute logits."""

from __future__ import annotations

LOGITS_PER_CHUNK = 1 << 27
"""Maximum number of logits that exist at the same time: 512 MiB in float32."""
FUSED_LOGITS_PER_CHUNK = 1 << 30
"""Maximum number of logits that exist at the same time if GPU kernels compute the loss: 2 GiB in
bfloat16. The kernels need no float32 copy.
"""


def tokens_per_chunk(vocab_size: int, *, fused: bool) -> int:
    """Return the number of tokens in one chunk of logits.

    Args:
        vocab_size: number of vocabulary rows on one rank.
        fused: whether GPU kernels compute the loss.
    """
    most = FUSED_LOGITS_PER_CHUNK if fused else LOGITS_PER_CHUNK
    return max(most // vocab_size, 1)

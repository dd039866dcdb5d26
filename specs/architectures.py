"""Shapes of the models that can be trained, in one table that is read without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """The shape of a decoder-only transformer (RMSNorm, rotary positions, SwiGLU, grouped keys)."""

    dim: int
    """Width of the residual stream."""
    n_layers: int
    """Transformer blocks."""
    n_heads: int
    """Query heads; each is `dim / n_heads` wide."""
    n_kv_heads: int
    """Key and value heads; divides `n_heads`."""
    ffn_dim: int
    """Width of the SwiGLU hidden layer."""
    vocab_size: int
    """Rows of the embedding."""
    rope_theta: float = 500_000.0
    """Base of the rotary position frequencies."""
    norm_eps: float = 1e-5
    """Epsilon of the RMS norms."""
    tied_embeddings: bool = False
    """Whether the head is the embedding, transposed."""

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.n_heads


# The Llama 3 family as published ("The Llama 3 Herd of Models", table 3, and the model cards of
# 3.2). `debug` trains in seconds on one CPU core; 320 rows hold the 256 bytes, three special
# tokens, and padding to a multiple of 64.
ARCHITECTURES: dict[str, dict[str, Architecture]] = {
    "llama3": {
        "debug": Architecture(64, 4, 4, 2, 192, 320, rope_theta=10_000.0),
        "1B": Architecture(2048, 16, 32, 8, 8192, 128_256, tied_embeddings=True),
        "3B": Architecture(3072, 28, 24, 8, 8192, 128_256, tied_embeddings=True),
        "8B": Architecture(4096, 32, 32, 8, 14_336, 128_256),
        "70B": Architecture(8192, 80, 64, 8, 28_672, 128_256),
        "405B": Architecture(16_384, 126, 128, 8, 53_248, 128_256),
    },
}

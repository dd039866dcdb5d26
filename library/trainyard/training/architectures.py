"""Shapes of the built-in models, in a table that does not need torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from trainyard.training.counted_model import CountedModel


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's scaling of rotary positions for contexts longer than the original context.

    Frequencies with fewer than `low_freq_factor` turns in the original context are divided by
    `factor`. Frequencies with more than `high_freq_factor` turns stay unchanged. Frequencies in
    between are interpolated.
    """

    factor: float
    """Divisor of the low frequencies."""
    low_freq_factor: float = 1.0
    """Maximum number of turns of a low frequency in the original context."""
    high_freq_factor: float = 4.0
    """Minimum number of turns of a high frequency in the original context."""
    original_context: int = 8192
    """Length of the original context, in tokens."""


@dataclass(frozen=True)
class Architecture:
    """Shape of a decoder-only transformer (RMSNorm, rotary positions, SwiGLU, grouped keys)."""

    dim: int
    """Width of the residual stream."""
    n_layers: int
    """Number of transformer blocks."""
    n_heads: int
    """Number of query heads."""
    n_kv_heads: int
    """Number of key and value heads; it divides `n_heads`."""
    ffn_dim: int
    """Width of the SwiGLU hidden layer."""
    vocab_size: int
    """Number of rows of the embedding."""
    own_head_dim: int | None = None
    """Width of one attention head; None for `dim / n_heads`."""
    rope_theta: float = 500_000.0
    """Base of the rotary position frequencies."""
    rope_scaling: RopeScaling | None = None
    """Scaling of rotary positions; None for no scaling."""
    norm_eps: float = 1e-5
    """Epsilon of the RMS norms."""
    tied_embeddings: bool = False
    """Whether the head is the transposed embedding."""
    qk_norm: bool = False
    """Whether the queries and keys of each head pass an RMS norm before the rotation."""
    counted: CountedModel | None = None
    """Numbers of a hub model, which replace the numbers that follow from the shape."""

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.own_head_dim or self.dim // self.n_heads

    @property
    def attention_dim(self) -> int:
        """Total width of all query heads; equals `dim` unless `own_head_dim` is set."""
        return self.n_heads * self.head_dim


_LLAMA = partial(Architecture, vocab_size=128_256)
_QWEN = partial(
    Architecture,
    vocab_size=151_936,
    own_head_dim=128,
    rope_theta=1_000_000.0,
    norm_eps=1e-6,
    qk_norm=True,
)
_LLAMA_3_1, _LLAMA_3_2 = RopeScaling(factor=8.0), RopeScaling(factor=32.0)

# Values as in the models' config.json on the Hugging Face hub (meta-llama/Llama-3.2-1B and -3B,
# Llama-3.1-8B, -70B and -405B; Qwen/Qwen3-0.6B to -32B). Columns: dim, n_layers, n_heads,
# n_kv_heads and ffn_dim. `debug` trains in seconds on one CPU core; its 320 rows are the 256
# bytes, three special tokens, and padding to a multiple of 64. The heads of Qwen's `debug` are
# wider than dim / n_heads, as in most Qwen models.
ARCHITECTURES: dict[str, dict[str, Architecture]] = {
    "llama3": {
        "debug": Architecture(64, 4, 4, 2, 192, 320, rope_theta=10_000.0),
        "1B": _LLAMA(2048, 16, 32, 8, 8192, rope_scaling=_LLAMA_3_2, tied_embeddings=True),
        "3B": _LLAMA(3072, 28, 24, 8, 8192, rope_scaling=_LLAMA_3_2, tied_embeddings=True),
        "8B": _LLAMA(4096, 32, 32, 8, 14_336, rope_scaling=_LLAMA_3_1),
        "70B": _LLAMA(8192, 80, 64, 8, 28_672, rope_scaling=_LLAMA_3_1),
        "405B": _LLAMA(16_384, 126, 128, 8, 53_248, rope_scaling=_LLAMA_3_1),
    },
    "qwen3": {
        "debug": _QWEN(
            64,
            4,
            4,
            2,
            192,
            vocab_size=320,
            own_head_dim=32,
            rope_theta=10_000.0,
            tied_embeddings=True,
        ),
        "0.6B": _QWEN(1024, 28, 16, 8, 3072, tied_embeddings=True),
        "1.7B": _QWEN(2048, 28, 16, 8, 6144, tied_embeddings=True),
        "4B": _QWEN(2560, 36, 32, 8, 9728, tied_embeddings=True),
        "8B": _QWEN(4096, 36, 32, 8, 12_288),
        "14B": _QWEN(5120, 40, 40, 8, 17_408),
        "32B": _QWEN(5120, 64, 64, 8, 25_600),
    },
}

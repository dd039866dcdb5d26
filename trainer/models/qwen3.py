"""Qwen3, the dense models ("Qwen3 Technical Report", 2025).

Shapes: B sequences, S tokens, D model width, H query heads, K key heads, W head width.
"""

from __future__ import annotations

from torch import Tensor, nn

from trainer.models.attention import Attention
from trainer.models.decoder import Block, FeedForward, Transformer
from trainyard.training.architectures import Architecture


class Qwen3(Transformer):
    """The decoder with grouped-query attention of normed queries and keys, and SwiGLU."""

    def new_block(self, arch: Architecture, dropout: float) -> Block:
        """Return one of Qwen3's layers."""
        attention = NormedAttention(arch)
        return Block(arch, dropout, attention=attention, feed_forward=FeedForward(arch))


class NormedAttention(Attention):
    """Attention whose queries and keys are normed, each head for itself, before they are rotated.

    It bounds the scores, which otherwise grow in training (Dehghani et al., ViT-22B, 2023). One
    weight of width W serves all heads.
    """

    def __init__(self, arch: Architecture) -> None:
        super().__init__(arch)
        self.q_norm = nn.RMSNorm(arch.head_dim, eps=arch.norm_eps)
        self.k_norm = nn.RMSNorm(arch.head_dim, eps=arch.norm_eps)

    def project(self, x_BSD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return normed queries [B, H, S, W], normed keys and plain values [B, K, S, W]."""
        q_BHSW, k_BKSW, v_BKSW = super().project(x_BSD)
        return self.q_norm(q_BHSW), self.k_norm(k_BKSW), v_BKSW

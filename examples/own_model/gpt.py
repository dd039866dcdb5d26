"""A GPT as small as it goes: learned positions, LayerNorm, GELU (Radford et al., GPT-2, 2019).

Shapes: B sequences, S tokens, D width, H heads, W head width, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from trainer.model.noise import Noise


def build(
    *, vocab_size: int, seq_len: int, width: int, depth: int, heads: int, dropout: float = 0.0
) -> GPT:
    """Return the model; the trainer gives the first two, `model.arguments` the others."""
    return GPT(vocab_size, seq_len, width, depth, heads, dropout)


class GPT(nn.Module):
    """Token and position embeddings, blocks, a final norm, and the embedding again as head."""

    positions: Tensor

    def __init__(
        self, vocab_size: int, seq_len: int, width: int, depth: int, heads: int, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.places = nn.Embedding(seq_len, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout, name=str(i)) for i in range(depth))
        self.norm = nn.LayerNorm(width)
        # Built without memory, filled later: the trainer copies it from a model of its own.
        self.register_buffer("positions", torch.arange(seq_len), persistent=False)

    def forward(self, tokens_BS: Tensor, noise: Noise | None = None) -> Tensor:
        """Return logits [B, S, V]; `noise` is there while training."""
        places_S = self.positions[: tokens_BS.shape[1]]
        x_BSD = self.tokens(tokens_BS) + self.places(places_S)
        for block in self.blocks:
            x_BSD = block(x_BSD, noise)
        return F.linear(self.norm(x_BSD), self.tokens.weight)


class Block(nn.Module):
    """Attention and a feed-forward of four times the width, each normed and added."""

    def __init__(self, width: int, heads: int, dropout: float, *, name: str) -> None:
        super().__init__()
        self.heads, self.dropout, self.name = heads, dropout, name
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x_BSD: Tensor, noise: Noise | None) -> Tensor:
        """Return the residual stream after this block."""
        qkv_BSHW = self.qkv(self.norm_1(x_BSD)).unflatten(-1, (3 * self.heads, -1))
        q_BHSW, k_BHSW, v_BHSW = qkv_BSHW.transpose(1, 2).chunk(3, dim=1)
        mixed_BHSW = F.scaled_dot_product_attention(q_BHSW, k_BHSW, v_BHSW, is_causal=True)
        mixed_BSD = self.mix(mixed_BHSW.transpose(1, 2).flatten(2))
        x_BSD = x_BSD + self._dropped(mixed_BSD, noise, "attention")
        fed_BSD = self.down(F.gelu(self.up(self.norm_2(x_BSD))))
        return x_BSD + self._dropped(fed_BSD, noise, "feed_forward")

    def _dropped(self, x_BSD: Tensor, noise: Noise | None, site: str) -> Tensor:
        if noise is None:
            return x_BSD
        return noise.dropout(x_BSD, self.dropout, f"blocks.{self.name}.{site}")

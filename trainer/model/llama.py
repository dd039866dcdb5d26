"""The Llama transformer ("The Llama 3 Herd of Models", 2024), as one process would write it.

Nothing here knows of parallelism. Every layer keeps its global number in its name, also when other
layers are taken out, so a checkpoint fits any layout.

Shapes: B sequences, S tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specs.architectures import Architecture
from specs.job import JobSpec
from trainer.model.attention import Attention, Rotary
from trainer.model.noise import SequenceNoise


def build_model(spec: JobSpec) -> Transformer:
    """Return the spec's model on the meta device: shapes without memory.

    After `parallelize`, `to_empty(device=...)` gives it memory and `init_weights` its values.
    """
    with torch.device("meta"):
        return Transformer(
            spec.architecture, seq_len=spec.training.seq_len, dropout=spec.model.dropout
        )


class Transformer(nn.Module):
    """Token embedding, transformer blocks, final norm and projection to the vocabulary."""

    def __init__(self, arch: Architecture, *, seq_len: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.arch = arch
        self.tok_embeddings = nn.Embedding(arch.vocab_size, arch.dim)
        self.rotary = Rotary(arch.head_dim, seq_len, arch.rope_theta)
        self.layers = nn.ModuleDict(
            {str(index): Block(arch, index, dropout) for index in range(arch.n_layers)}
        )
        self.norm = nn.RMSNorm(arch.dim, eps=arch.norm_eps)
        # With tied embeddings there is one weight, under one name, and no second module.
        self.output = (
            None if arch.tied_embeddings else nn.Linear(arch.dim, arch.vocab_size, bias=False)
        )

    def forward(self, tokens_BS: Tensor, noise: SequenceNoise | None = None) -> Tensor:
        """Return the logits of the token that follows each token, [B, S, V].

        `noise` drives dropout while training; without it nothing is dropped.

        Raises:
            ValueError: the sequences are longer than the model was built for.
        """
        cos_SW, sin_SW = self.rotary(tokens_BS.shape[1])
        x_BSD = self.tok_embeddings(tokens_BS)
        for layer in self.layers.values():
            x_BSD = layer(x_BSD, cos_SW, sin_SW, noise)
        x_BSD = self.norm(x_BSD)
        if self.output is None:
            return F.linear(x_BSD, self.tok_embeddings.weight)
        return self.output(x_BSD)


class Block(nn.Module):
    """One layer: attention and feed-forward, each normed before and added to its input."""

    def __init__(self, arch: Architecture, index: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.name = f"layers.{index}"
        self.attention_norm = nn.RMSNorm(arch.dim, eps=arch.norm_eps)
        self.attention = Attention(arch)
        self.feed_forward_norm = nn.RMSNorm(arch.dim, eps=arch.norm_eps)
        self.feed_forward = FeedForward(arch)

    def forward(
        self, x_BSD: Tensor, cos_SW: Tensor, sin_SW: Tensor, noise: SequenceNoise | None
    ) -> Tensor:
        """Return the residual stream after this layer, [B, S, D]."""
        attended_BSD = self.attention(self.attention_norm(x_BSD), cos_SW, sin_SW)
        if noise is not None:
            attended_BSD = noise.dropout(attended_BSD, self.dropout, f"{self.name}.attention")
        x_BSD = x_BSD + attended_BSD
        fed_BSD = self.feed_forward(self.feed_forward_norm(x_BSD))
        if noise is not None:
            fed_BSD = noise.dropout(fed_BSD, self.dropout, f"{self.name}.feed_forward")
        return x_BSD + fed_BSD


class FeedForward(nn.Module):
    """SwiGLU (Shazeer, GLU Variants Improve Transformer, 2020)."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.w1 = nn.Linear(arch.dim, arch.ffn_dim, bias=False)
        self.w2 = nn.Linear(arch.ffn_dim, arch.dim, bias=False)
        self.w3 = nn.Linear(arch.dim, arch.ffn_dim, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return the feed-forward's contribution to the residual stream, shaped as `x_BSD`."""
        return self.w2(F.silu(self.w1(x_BSD)) * self.w3(x_BSD))

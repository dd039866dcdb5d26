"""The decoder-only transformer of all families, written as for a single process.

A family defines its block (`families.py`). No code here depends on parallelism. Every layer has its
global number in its name, also in a pipeline stage, so a checkpoint fits any layout.

Shapes: B sequences, S tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.attention import Positions
from trainer.models.base import Model
from trainer.models.documents import Mask
from trainer.models.head import Head
from trainer.models.stateless_rng import dropout, keys_of_sites
from trainyard.training.architectures import Architecture

STD = 0.02
"""Standard deviation of the initial weights, except of matrices that add to the residual stream."""


class Transformer(Model):
    """Token embedding, transformer blocks, final norm and projection to the vocabulary.

    In a pipeline stage, embedding, norm and head may be None, and layers may be missing.
    """

    def __init__(self, arch: Architecture, *, seq_len: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.arch = arch
        self.tok_embeddings: nn.Embedding | None = nn.Embedding(arch.vocab_size, arch.dim)
        self.positions = Positions(
            arch.head_dim, seq_len, theta=arch.rope_theta, scaling=arch.rope_scaling
        )
        self.layers = nn.ModuleDict(
            {str(index): self.new_block(arch, dropout) for index in range(arch.n_layers)}
        )
        self.norm: nn.RMSNorm | None = nn.RMSNorm(arch.dim, eps=arch.norm_eps)
        self.output: Head | None = Head(arch)

    def new_block(self, arch: Architecture, dropout: float) -> Block:
        """Return a new layer for the family."""
        raise NotImplementedError

    def forward(
        self,
        x: Tensor,
        labels_BS: Tensor | None = None,
        *,
        keys_B: Tensor | None = None,
        segments_BS: Tensor | None = None,
    ) -> Tensor:
        """Return the next token's logits [B, S, V]; without a head, the residual stream [B, S, D].

        Args:
            x: token ids [B, S]; without an embedding, the residual stream [B, S, D].
            labels_BS: next tokens. If given, the result is the sum of their losses, a float32
                scalar in nats; labels of -100 do not count.
            keys_B: random key of each sequence (`sequence_keys`) for dropout; without keys there is
                no dropout.
            segments_BS: document index of each token in the whole sequence, int32; tokens then
                attend only to their own document. If absent, tokens attend to all earlier tokens.

        Raises:
            ValueError: a sequence is longer than `seq_len`.
        """
        cos_SW, sin_SW, tokens_S = self.positions(x.shape[1])
        mask = None if segments_BS is None else self.positions.document_mask(segments_BS)
        x_BSD = x if self.tok_embeddings is None else self.tok_embeddings(x)
        for index, layer in self.layers.items():
            sites = f"layers.{index}.attention", f"layers.{index}.feed_forward"
            keys_2B = None if keys_B is None else keys_of_sites(keys_B, sites)
            x_BSD = layer(x_BSD, cos_SW, sin_SW, tokens_S, keys_2B, mask)
        if self.norm is not None:
            x_BSD = self.norm(x_BSD)
        if self.output is None:
            return x_BSD
        tied = self.tok_embeddings.weight if self.tied and self.tok_embeddings else None
        return self.output(x_BSD, labels_BS, tied)

    @property
    def tied(self) -> bool:
        """Whether the head uses the weight of the embedding."""
        return self.arch.tied_embeddings

    def keep(self, names: Collection[str]) -> None:
        """Remove all modules with weights except the named ones, in place; parameter names stay."""
        layers = self.layers.items()
        self.layers = nn.ModuleDict({i: layer for i, layer in layers if f"layers.{i}" in names})
        for name in {"tok_embeddings", "norm", "output"}.difference(names):
            setattr(self, name, None)

    def part(self, names: Collection[str]) -> Self:
        """Return a model of the named modules; it shares them with this model."""
        # Not `copy.copy(self)`, because a shallow copy shares its dict of hooks with the original,
        # and FSDP registers hooks on each stage.
        with torch.device("meta"):
            part = type(self)(replace(self.arch, n_layers=0), seq_len=self.positions.seq_len)
        part.arch, part.positions, part.layers = self.arch, self.positions, self.layers
        part.tok_embeddings, part.norm, part.output = self.tok_embeddings, self.norm, self.output
        part.keep(names)
        return part

    def initial_std(self, name: str) -> float:
        """Return 0.02, divided by sqrt(2 x layers) for a matrix that adds to the residual stream.

        So the variance of the stream does not grow with depth (Radford et al., GPT-2, 2019).
        """
        residual = name.endswith(("wo.weight", "w2.weight"))
        return STD / math.sqrt(2 * self.arch.n_layers) if residual else STD


class Block(nn.Module):
    """One layer: pre-norm attention and feed-forward, each with a residual connection.

    Args:
        arch: shape of the model.
        dropout: probability of zeroing an element of each contribution to the stream.
        attention: called with x [B, S, D], cosines, sines and the document mask.
        feed_forward: called with x [B, S, D].
    """

    def __init__(
        self,
        arch: Architecture,
        dropout: float,
        *,
        attention: nn.Module,
        feed_forward: nn.Module,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.attention_norm = nn.RMSNorm(arch.dim, eps=arch.norm_eps)
        self.attention = attention
        self.feed_forward_norm = nn.RMSNorm(arch.dim, eps=arch.norm_eps)
        self.feed_forward = feed_forward

    def forward(
        self,
        x_BSD: Tensor,
        cos_SW: Tensor,
        sin_SW: Tensor,
        tokens_S: Tensor,
        keys_2B: Tensor | None,
        mask: Mask | None,
    ) -> Tensor:
        """Return the residual stream after this layer, [B, S, D].

        All arguments are tensors or contain only tensors, and no Python number differs between
        layers, so one compiled program serves all layers. `keys_2B` has one row for each of the two
        dropout sites.
        """
        attended_BSD = self.attention(self.attention_norm(x_BSD), cos_SW, sin_SW, mask)
        if keys_2B is not None:
            attended_BSD = dropout(attended_BSD, self.dropout, keys_B=keys_2B[0], tokens_S=tokens_S)
        x_BSD = x_BSD + attended_BSD
        fed_BSD = self.feed_forward(self.feed_forward_norm(x_BSD))
        if keys_2B is not None:
            fed_BSD = dropout(fed_BSD, self.dropout, keys_B=keys_2B[1], tokens_S=tokens_S)
        return x_BSD + fed_BSD


class FeedForward(nn.Module):
    """SwiGLU (Shazeer, GLU Variants Improve Transformer, 2020)."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.w1 = nn.Linear(arch.dim, arch.ffn_dim, bias=False)
        self.w2 = nn.Linear(arch.ffn_dim, arch.dim, bias=False)
        self.w3 = nn.Linear(arch.dim, arch.ffn_dim, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return the feed-forward's contribution to the stream, in the shape of `x_BSD`."""
        return self.w2(F.silu(self.w1(x_BSD)) * self.w3(x_BSD))

"""The model of the trainer's benchmark as in a simple script: only torch's parts.

Shapes: B sequences, S tokens, D model width, H heads, K key heads, W head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.training.architectures import Architecture


class BareLlama(nn.Module):
    """A Llama decoder that returns the mean loss."""

    def __init__(self, shape: Architecture, seq_len: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.dim)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.n_layers))
        self.norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.output = nn.Linear(shape.dim, shape.vocab_size, bias=False)
        width = shape.head_dim
        turns = shape.rope_theta ** (-torch.arange(0, width, 2) / width)
        angles = torch.outer(torch.arange(seq_len), turns).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens_BS: Tensor, labels_BS: Tensor) -> Tensor:
        """Return the mean cross entropy of the labels, in nats."""
        x_BSD = self.embedding(tokens_BS)
        for layer in self.layers:
            x_BSD = layer(x_BSD, self.cos, self.sin)
        logits = self.output(self.norm(x_BSD))
        return F.cross_entropy(logits.float().flatten(0, 1), labels_BS.flatten())


class _Layer(nn.Module):
    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.width = shape.head_dim
        queries, keys = shape.n_heads * self.width, shape.n_kv_heads * self.width
        self.norm1 = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.q = nn.Linear(shape.dim, queries, bias=False)
        self.k = nn.Linear(shape.dim, keys, bias=False)
        self.v = nn.Linear(shape.dim, keys, bias=False)
        self.o = nn.Linear(queries, shape.dim, bias=False)
        self.norm2 = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.gate = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.up = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.down = nn.Linear(shape.ffn_dim, shape.dim, bias=False)

    def forward(self, x_BSD: Tensor, cos_SW: Tensor, sin_SW: Tensor) -> Tensor:
        h_BSD = self.norm1(x_BSD)
        q, k, v = (self._heads(p(h_BSD)) for p in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(
            _turned(q, cos_SW, sin_SW),
            _turned(k, cos_SW, sin_SW),
            v,
            is_causal=True,
            enable_gqa=True,
        )
        x_BSD = x_BSD + self.o(mixed.transpose(1, 2).flatten(2))
        h_BSD = self.norm2(x_BSD)
        fed_BSD: Tensor = self.down(F.silu(self.gate(h_BSD)) * self.up(h_BSD))
        return x_BSD + fed_BSD

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.width).transpose(1, 2)


def _turned(x: Tensor, cos_SW: Tensor, sin_SW: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return (x * cos_SW + torch.cat((-second, first), dim=-1) * sin_SW).type_as(x)

"""A GPT as small as it goes: learned positions, LayerNorm, GELU (Radford et al., GPT-2, 2019).

Shapes: B sequences, S tokens, D width, H heads, W head width, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
)

if TYPE_CHECKING:
    from trainer.models.stateless_rng import Noise


def build(
    *, vocab_size: int, seq_len: int, width: int, depth: int, heads: int, dropout: float = 0.0
) -> GPT:
    """Return the model; the trainer gives the first two, `model.arguments` the others."""
    return GPT(vocab_size, seq_len, width, depth, heads, dropout)


class GPT(nn.Module):
    """Token and position embeddings, blocks, a final norm, and a head."""

    positions: Tensor

    def __init__(
        self, vocab_size: int, seq_len: int, width: int, depth: int, heads: int, dropout: float
    ) -> None:
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(vocab_size, width)
        self.places = nn.Embedding(seq_len, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        # Built without memory, filled later: the trainer copies it from a model of its own.
        self.register_buffer("positions", torch.arange(seq_len), persistent=False)

    def forward(self, x: Tensor, noise: Noise | None = None) -> Tensor:
        """Return logits [B, S, V] of token ids [B, S]; `noise` is there while training.

        In a stage of a pipeline the modules of the other stages are None: without the embeddings
        `x` is what the stage before returned, [B, S, D], and without a head that is returned.
        """
        if self.tokens is not None:
            x = self.tokens(x) + self.places(self.positions[: x.shape[1]])
        for index, block in enumerate(self.blocks):
            if block is not None:
                x = block(x, None if noise is None else noise.within(f"blocks.{index}"))
        if self.head is not None:
            x = self.head(self.norm(x))
        return x

    def tensor_parallel_plan(
        self, *, tp: int, sequence_parallel: bool, loss_parallel: bool
    ) -> dict[str, ParallelStyle]:
        """Return how `tp` ranks share the modules: each has some heads and hidden features.

        Raises:
            ValueError: the heads cannot be shared out.
        """
        if self.heads % tp:
            raise ValueError(f"tp={tp} does not divide heads={self.heads}")
        # Between the matrices each rank has some tokens of every sequence, or all of them.
        stream = Shard(1) if sequence_parallel else Replicate()
        plan: dict[str, ParallelStyle] = {
            "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
            "places": RowwiseParallel(
                input_layouts=Replicate(),
                output_layouts=Shard(0) if sequence_parallel else Replicate(),  # [S, D]
            ),
            "blocks.*.qkv": ColwiseParallel(input_layouts=stream),
            "blocks.*.mix": RowwiseParallel(output_layouts=stream),
            "blocks.*.up": ColwiseParallel(input_layouts=stream),
            "blocks.*.down": RowwiseParallel(output_layouts=stream),
            "head": ColwiseParallel(
                input_layouts=stream,
                output_layouts=Shard(-1) if loss_parallel else Replicate(),
                use_local_output=not loss_parallel,
            ),
        }
        if sequence_parallel:  # else norms are whole, and compute the same on each rank
            for name in ("blocks.*.norm_1", "blocks.*.norm_2", "norm"):
                plan[name] = SequenceParallel(use_local_output=True)
        return plan

    def pipeline_parallel_plan(self) -> list[list[str]]:
        """Return the pieces that stages are made of: before the blocks, each block, after them."""
        blocks = [[f"blocks.{index}"] for index in range(len(self.blocks))]
        return [["tokens", "places"], *blocks, ["norm", "head"]]


class Block(nn.Module):
    """Attention and a feed-forward of four times the width, each normed and added."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.head_width, self.dropout = width // heads, dropout
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x_BSD: Tensor, noise: Noise | None) -> Tensor:
        """Return the residual stream after this block."""
        # Head by head, their number left open: a rank of several has some of them.
        heads_BSH3W = self.qkv(self.norm_1(x_BSD)).unflatten(-1, (-1, 3, self.head_width))
        q_BHSW, k_BHSW, v_BHSW = heads_BSH3W.transpose(1, 2).unbind(3)
        mixed_BHSW = F.scaled_dot_product_attention(q_BHSW, k_BHSW, v_BHSW, is_causal=True)
        mixed_BSD = self.mix(mixed_BHSW.transpose(1, 2).flatten(2))
        x_BSD = x_BSD + self._dropped(mixed_BSD, noise, "attention")
        fed_BSD = self.down(F.gelu(self.up(self.norm_2(x_BSD))))
        return x_BSD + self._dropped(fed_BSD, noise, "feed_forward")

    def _dropped(self, x_BSD: Tensor, noise: Noise | None, site: str) -> Tensor:
        return x_BSD if noise is None else noise.dropout(x_BSD, self.dropout, site)

"""Models whose forward depends on the data; each maps tokens [B, S] to logits [B, S, V].

Copied to the data folder of a job, whose `model.factory` is `branching:build`.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = x + self.down(torch.tanh(self.up(x)))
        return changed


class Net(nn.Module):
    """Embedding, some blocks in an order that a subclass chooses, and a head."""

    def __init__(self, vocab_size: int, width: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.middle(tokens, self.tokens(tokens)))
        return logits

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        raise NotImplementedError


class Experts(Net):
    """Each sequence meets one of the blocks, which are of equal size."""

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        picked: Tensor = self.blocks[int(tokens.sum() % len(self.blocks))](x)
        return picked


class Skipping(Net):
    """One sequence in three skips the second block."""

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        for index, block in enumerate(self.blocks):
            if index != 1 or tokens.sum() % 3 > 0:
                x = block(x)
        return x


class EarlyExit(Net):
    """A sequence leaves after one to all blocks; some run none."""

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        for index, block in enumerate(self.blocks):
            if tokens[:, index].sum() % 4 == 0:
                break
            x = block(x)
        return x


class Thawing(Net):
    """The last block is frozen until a weight has moved far enough."""

    def __init__(self, vocab_size: int, width: int, depth: int) -> None:
        super().__init__(vocab_size, width, depth)
        self.clock = nn.Parameter(torch.zeros(2))

    def init_weights(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.05, generator=generator)
        nn.init.zeros_(self.clock)

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        *thawed, last = self.blocks
        for block in thawed:
            x = block(x)
        x = x * (1 + self.clock.sum())
        if self.clock.abs().sum() > 0.02:
            y: Tensor = last(x)
            return y
        with torch.no_grad():
            frozen: Tensor = last(x) - x
        return x + frozen


class Router(Net):
    """Each token meets one of the blocks; a block without tokens does not run."""

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        # Few sequences have a token of the last kind.
        kinds = torch.where(tokens == 120, len(self.blocks) - 1, tokens % (len(self.blocks) - 1))
        result = torch.zeros_like(x)
        for index, block in enumerate(self.blocks):
            chosen = kinds == index
            if chosen.any():
                result[chosen] = block(x[chosen])
        return result


class Mixture(Block):
    """A block that uses one of two matrices, by the stream that it gets."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.other = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up if x.detach().sum() > 0 else self.other
        changed: Tensor = x + self.down(torch.tanh(inner(x)))
        return changed


class InBlocks(Net):
    """All blocks run; within each, other parameters do."""

    data_dependence = "in_blocks"

    def __init__(self, vocab_size: int, width: int, depth: int) -> None:
        super().__init__(vocab_size, width, depth)
        self.blocks = nn.ModuleList(Mixture(width) for _ in range(depth))

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Claims(EarlyExit):
    """Runs other blocks than its class states."""

    data_dependence = "in_blocks"


class Drawn(Net):
    """Drops blocks by a source that no tensor shows."""

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        for block in self.blocks:
            if random.random() < 0.7:
                x = block(x)
        return x


class Plain(Net):
    """The same blocks for all tokens."""

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Unfrozen(Plain):
    """Built frozen in part, and thawed in a way that the optimizer cannot see."""

    def __init__(self, vocab_size: int, width: int, depth: int) -> None:
        super().__init__(vocab_size, width, depth)
        self.blocks[0].requires_grad_(False)

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        for parameter in self.blocks[0].parameters():
            parameter.requires_grad_(True)
        return super().middle(tokens, x)


class Misnamed(Plain):
    data_dependence = "in_block"


KINDS = (Experts, Skipping, EarlyExit, Thawing, Router, InBlocks)
OTHERS = (Claims, Drawn, Plain, Unfrozen, Misnamed)


def build(vocab_size: int, seq_len: int, kind: str, width: int = 16, depth: int = 3) -> Any:
    del seq_len
    return {each.__name__: each for each in (*KINDS, *OTHERS)}[kind](vocab_size, width, depth)

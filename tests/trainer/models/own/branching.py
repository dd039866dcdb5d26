"""Models with a data-dependent forward; each maps tokens [B, S] to logits [B, S, V].

Copied to the data folder of a job with the `model.factory` `branching:build`.
"""

from __future__ import annotations

import os
import random
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


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
    """Each sequence passes one of the blocks, which have equal sizes."""

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
    """A sequence exits after one to all blocks; some run none."""

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
    """Each token passes one of the blocks; a block without tokens does not run."""

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        # Few sequences have a token of the last kind.
        kinds = torch.where(tokens < 12, len(self.blocks) - 1, tokens % (len(self.blocks) - 1))
        result = torch.zeros_like(x)
        for index, block in enumerate(self.blocks):
            chosen = kinds == index
            if chosen.any():
                result[chosen] = block(x[chosen])
        return result


class Mixture(Block):
    """A block that uses one of two matrices, depending on its input."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.other = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up if x.detach().sum() > 0 else self.other
        changed: Tensor = x + self.down(torch.tanh(inner(x)))
        return changed


class InBlocks(Net):
    """All blocks run; the used parameters within each differ."""

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
    """Drops blocks by a source outside all tensors."""

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


class Averaging(Plain):
    """Keeps running means and counts of its inputs, outside and inside of the blocks."""

    mean: Tensor
    seen: Tensor
    odd: Tensor

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("odd", torch.zeros(3, dtype=torch.bool))
        self.blocks[0].register_buffer("last", torch.zeros(1))

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * tokens.float().mean()
            self.seen += tokens.shape[0]
            self.odd.copy_(tokens[0, :3] % 2 == 1)
            self.blocks[0].get_buffer("last").copy_(tokens[0, :1])
        return super().middle(tokens, x)


class Surprising(Plain):
    """Changes a buffer, but not on the meta device."""

    seen: Tensor

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register_buffer("seen", torch.zeros(()))

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        if not tokens.is_meta:
            self.seen += 1
        return super().middle(tokens, x)


class Scaling(Plain):
    """Multiplies by a buffer of the checkpoint that no forward pass changes."""

    scale: Tensor

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register_buffer("scale", torch.full((1,), 1.5))

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        return super().middle(tokens, x * self.scale)


class CountingEvaluations(Scaling):
    """Changes a buffer, but only in evaluation."""

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        if not self.training:
            self.scale += 1
        return super().middle(tokens, x)


class Recomputing(Plain):
    """Recomputes its blocks by itself, so backward runs them again."""

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


@cache
def wave(length: int) -> Tensor:
    return torch.sin(torch.arange(length).float())


class Caching(Plain):
    """Keeps a table that the first forward computes."""

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        return super().middle(tokens, x * wave(tokens.shape[1])[:, None])


class Logging(Plain):
    """Reads values on one rank only, without a decision."""

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        if int(os.environ["RANK"]) == 0:
            self.last = x.detach().abs().mean().item()
        return super().middle(tokens, x)


class Masking(Plain):
    """Divides by the number of tokens that are not padding."""

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        counted = (tokens != 0)[..., None]
        mean = (x * counted).sum(1, keepdim=True) / counted.sum(1, keepdim=True)
        return super().middle(tokens, x + mean)


class Foreign(Plain):
    """Uses a tensor of another device than that of the meta run."""

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        return super().middle(tokens, x * torch.ones(1, device="cpu"))


class Shuffled(Plain):
    """Each rank builds its blocks in its own order, like that of a set."""

    def __init__(self, vocab_size: int, width: int, depth: int) -> None:
        super().__init__(vocab_size, width, depth)
        names = ["a", "b", "c"][:: 1 - 2 * (int(os.environ["RANK"]) % 2)]
        self.blocks = nn.ModuleList()
        self.named = nn.ModuleDict({name: Block(width) for name in names})

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        for name in ("a", "b", "c"):
            x = self.named[name](x)
        return x


class Reordered(Plain):
    """Each rank runs its blocks in its own order."""

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        blocks = list(self.blocks)
        for block in reversed(blocks) if int(os.environ["RANK"]) % 2 else blocks:
            x = block(x)
        return x


class PickingBlock(Mixture):
    def forward(self, x: Tensor) -> Tensor:
        inner = self.up if int(os.environ["RANK"]) % 2 else self.other
        changed: Tensor = x + self.down(torch.tanh(inner(x)))
        return changed


class Picking(Plain):
    """Uses different parameters within a block, by a source outside all tensors."""

    def __init__(self, vocab_size: int, width: int, depth: int) -> None:
        super().__init__(vocab_size, width, depth)
        self.blocks = nn.ModuleList(PickingBlock(width) for _ in range(depth))


class Unfrozen(Plain):
    """Built partly frozen, and unfrozen without the optimizer's knowledge."""

    def __init__(self, vocab_size: int, width: int, depth: int) -> None:
        super().__init__(vocab_size, width, depth)
        self.blocks[0].requires_grad_(False)

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        for parameter in self.blocks[0].parameters():
            parameter.requires_grad_(True)
        return super().middle(tokens, x)


class UnfrozenAnywhere(Unfrozen):
    """The same, with unused gradients dropped."""

    data_dependence = "anywhere"


class Misnamed(Plain):
    data_dependence = "in_block"


class Freezing(Plain):
    """Freezes a block for some sequences."""

    data_dependence = "anywhere"

    def middle(self, tokens: Tensor, x: Tensor) -> Tensor:
        self.blocks[0].requires_grad_(bool(tokens.sum() % 2 == 0))
        return super().middle(tokens, x)


KINDS = (Experts, Skipping, EarlyExit, Thawing, Router, InBlocks)
OF_BUFFERS = (Averaging, Surprising, Scaling, CountingEvaluations)
PLAIN = (Plain, Recomputing, Caching, Logging, Masking, Foreign)
REFUSED = (
    *(Claims, Drawn, Shuffled, Reordered, Picking),
    *(Unfrozen, UnfrozenAnywhere, Freezing, Misnamed),
)


def build(vocab_size: int, seq_len: int, kind: str, width: int = 16, depth: int = 3) -> Any:
    del seq_len
    return {each.__name__: each for each in (*KINDS, *PLAIN, *OF_BUFFERS, *REFUSED)}[kind](
        vocab_size, width, depth
    )

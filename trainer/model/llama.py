"""Llama 3 ("The Llama 3 Herd of Models", 2024)."""

from __future__ import annotations

from specs.architectures import Architecture
from trainer.model.attention import Attention
from trainer.model.decoder import Block, FeedForward, Transformer


class LlamaBlock(Block):
    """Grouped-query attention and SwiGLU."""

    def __init__(self, arch: Architecture, dropout: float) -> None:
        super().__init__(arch, dropout, attention=Attention(arch), feed_forward=FeedForward(arch))


class Llama(Transformer):
    """The decoder with Llama's blocks."""

    block = LlamaBlock

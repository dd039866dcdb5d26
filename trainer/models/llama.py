"""Llama 3 ("The Llama 3 Herd of Models", 2024)."""

from __future__ import annotations

from trainer.models.attention import Attention
from trainer.models.decoder import Block, FeedForward, Transformer
from trainyard.training.architectures import Architecture


class Llama(Transformer):
    """The decoder with grouped-query attention and SwiGLU."""

    def new_block(self, arch: Architecture, dropout: float) -> Block:
        """Return one of Llama's layers."""
        return Block(arch, dropout, attention=Attention(arch), feed_forward=FeedForward(arch))

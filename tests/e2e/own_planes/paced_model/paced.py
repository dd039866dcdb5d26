"""A model with a forward pass, and so a step, of known duration on any machine."""

from __future__ import annotations

import time

from torch import Tensor, nn


def build(*, vocab_size: int, seq_len: int, width: int, seconds: float) -> Paced:
    """Return the model; a forward pass sleeps for some seconds."""
    del seq_len
    return Paced(vocab_size, width, seconds)


class Paced(nn.Module):
    """An embedding and a head, and a pause."""

    def __init__(self, vocab_size: int, width: int, seconds: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.head = nn.Linear(width, vocab_size)
        self.seconds = seconds

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Return logits [B, S, V]."""
        time.sleep(self.seconds)
        logits_BSV: Tensor = self.head(self.tokens(tokens_BS))
        return logits_BSV

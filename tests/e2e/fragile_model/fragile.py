"""A model that some characters of its input break, like a model without a safe norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def build(*, vocab_size: int, seq_len: int, width: int, breaks_on: str) -> Fragile:
    """Return the model; `breaks_on` are the characters that it divides by zero on."""
    del seq_len
    return Fragile(vocab_size, width, frozenset(breaks_on.encode("ascii")))


class Fragile(nn.Module):
    """An embedding, one hidden layer and a head, scaled by what is 0 for a breaking character."""

    scales: Tensor

    def __init__(self, vocab_size: int, width: int, breaks_on: frozenset[int]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, vocab_size)
        scales_V = torch.tensor([0.0 if token in breaks_on else 1.0 for token in range(vocab_size)])
        self.register_buffer("scales", scales_V, persistent=False)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Return logits [B, S, V]."""
        x_BSD = self.tokens(tokens_BS) / self.scales[tokens_BS].unsqueeze(-1)
        logits_BSV: Tensor = self.head(torch.relu(self.hidden(x_BSD)) + x_BSD)
        return logits_BSV

"""The model that the probe trains: a decoder of the trainer with the trainer's own loss.

Shapes: B sequences, S tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.loop.build import allocate
from trainer.models.base import Model
from trainer.models.families import Llama
from trainer.models.initial_weights import init_weights
from trainyard.training.architectures import Architecture

SEED = 20_011
"""Seed of weights and tokens; equal on all ranks."""


@dataclass(frozen=True)
class Scale:
    """Sizes of the probe's work on a kind of device."""

    architecture: Architecture
    """Shape of the model."""
    seq_len: int
    """Tokens of a sequence."""
    sequences: int
    """Sequences of a step."""
    dtype: torch.dtype
    """Type of weights, gradients and matrix products, as in a training on this device."""
    product_size: int
    """Rows and columns of the matrices of a product."""
    products: int
    """Products of one timed repetition."""
    reduced_bytes: tuple[int, int]
    """Bytes per rank of the small and of the large all-reduce."""


SCALES = {
    # A repetition of each measurement takes some 20 ms on one core.
    "cpu": Scale(
        Architecture(64, 4, 4, 2, 192, 320, rope_theta=10_000.0),
        seq_len=64,
        sequences=4,
        dtype=torch.float32,
        product_size=256,
        products=64,
        reduced_bytes=(64 * 2**10, 4 * 2**20),
    ),
    # 0.3 billion weights: a step is long enough that the host does not limit its speed.
    "cuda": Scale(
        Architecture(2048, 4, 16, 8, 8192, 32_000),
        seq_len=2048,
        sequences=2,
        dtype=torch.bfloat16,
        product_size=8192,
        products=8,
        # At 1 Gbit/s the large all-reduces and links take a minute, at 400 GB/s a millisecond each.
        reduced_bytes=(2**20, 128 * 2**20),
    ),
}
"""Sizes by type of device. The gradient on a CPU is in float32, on a GPU in bfloat16."""


def build(scale: Scale, device: torch.device) -> Model:
    """Return the model with its initial weights on a device; equal on all ranks."""
    with torch.device("meta"):
        model = Llama(scale.architecture, seq_len=scale.seq_len)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(scale.dtype)
    allocate(model, weights=device, buffers=device)
    init_weights(model, SEED)
    return model


def tokens(scale: Scale, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return tokens [B, S] and the next tokens [B, S]; equal on all ranks."""
    drawn = torch.randint(
        scale.architecture.vocab_size,
        (scale.sequences, scale.seq_len + 1),
        generator=torch.Generator().manual_seed(SEED),
    ).to(device)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def backward(model: Model, tokens_BS: Tensor, labels_BS: Tensor) -> None:
    """Set the gradients of the mean loss over all tokens."""
    model.zero_grad()
    loss = model(tokens_BS, labels_BS) / labels_BS.numel()
    loss.backward()

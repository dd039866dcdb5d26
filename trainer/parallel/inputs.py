"""What a rank gives its model: its tokens of each sequence, as tensors on its device.

Shapes: B sequences of a micro-batch, S tokens of a sequence that this rank works on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.batches import MicroBatch
from trainer.models.base import Model
from trainer.models.stateless_rng import sequence_keys
from trainer.parallel.mesh import Place
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout


@dataclass(frozen=True)
class Inputs:
    """The arguments of the model's forward."""

    tokens: Tensor
    """Token ids [B, S]."""
    labels: Tensor
    """The token after each one [B, S]."""
    keys: Tensor | None
    """Noise key of each sequence [B]; None without dropout."""
    segments: Tensor | None
    """Document of each token of the whole sequence, int32; None without document masks."""

    @property
    def keywords(self) -> dict[str, Tensor]:
        """What every part of a model takes beside what it works on; only what there is."""
        given = {"keys_B": self.keys, "segments_BS": self.segments}
        return {name: tensor for name, tensor in given.items() if tensor is not None}


class InputMaker:
    """Makes inputs of micro-batches.

    Args:
        spec: gives seed and dropout.
        device: where the model is.
        tokens_S: places in the sequence of the tokens that this rank works on, int64 on the host.
    """

    def __init__(self, spec: JobSpec, *, device: torch.device, tokens_S: Tensor) -> None:
        self._seed = spec.training.seed
        # Whether an own model drops anything is not in the spec.
        self._has_dropout = spec.model.dropout > 0 or spec.model.factory is not None
        self._device = device
        whole = tokens_S.numel() == spec.training.seq_len
        self._tokens_S = None if whole else tokens_S.numpy()

    def __call__(self, step: int | None, batch: MicroBatch) -> Inputs:
        """Return the inputs for a micro-batch of a step; the host waits for no copy.

        Outside of training, which has steps, there is no noise.
        """
        keys_B = None
        if self._has_dropout and step is not None:
            keys_B = sequence_keys(self._seed, step, self._on_device(batch.positions))
        return Inputs(
            tokens=self._on_device(self._mine(batch.tokens)),
            labels=self._on_device(self._mine(batch.labels)),
            keys=keys_B,
            segments=None if batch.segments is None else self._on_device(batch.segments),
        )

    def _mine(self, array_BS: NDArray[np.int64]) -> NDArray[np.int64]:
        return array_BS if self._tokens_S is None else array_BS[:, self._tokens_S]

    def _on_device(self, array: NDArray[np.int64] | NDArray[np.int32]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cpu":
            return tensor
        # From pinned memory the copy runs beside the host.
        return tensor.pin_memory().to(self._device, non_blocking=True)


def take_tokens(model: Model, spec: JobSpec, layout: Layout, place: Place) -> None:
    """Tell a model which tokens it is given, and which of them its residual stream holds."""
    attended_S = attended_tokens(spec, layout, place)
    exchanged = spec.parallelism.cp_method == "ulysses"
    model.positions.take(
        attended_S=attended_S,
        stream_S=stream_tokens(attended_S, spec, layout, place),
        queries_S=torch.arange(spec.training.seq_len, device="cpu") if exchanged else attended_S,
    )


def attended_tokens(spec: JobSpec, layout: Layout, place: Place) -> Tensor:
    """Return the tokens whose queries, keys and values this rank computes, int64 on the host.

    Tensor-parallel ranks have the same ones. Context-parallel ranks share them out. With
    `allgather_kv` rank r of n has chunks r and 2n-1-r of 2n: an early one, which attends to little,
    and a late one, so that all have as much to do. With `ulysses` it has the r-th of n parts:
    there, each rank attends with all tokens, but with some heads only.
    """
    tokens_S = torch.arange(spec.training.seq_len, device="cpu")
    if spec.parallelism.cp_method == "ulysses" or layout.cp == 1:
        return tokens_S.chunk(layout.cp)[place.cp]
    chunks = tokens_S.chunk(2 * layout.cp)
    return torch.cat((chunks[place.cp], chunks[-1 - place.cp]))


def stream_tokens(attended_S: Tensor, spec: JobSpec, layout: Layout, place: Place) -> Tensor:
    """Return those of the attended tokens that this rank's residual stream holds.

    With sequence parallelism the tensor-parallel ranks share them out, in order.
    """
    parts = layout.tp if spec.parallelism.sequence_parallel else 1
    return attended_S.chunk(parts)[place.tp if parts > 1 else 0]

"""What the model is given for one micro-batch: tensors on the device of the rank.

Shapes: B sequences of a micro-batch, S tokens of a sequence that this rank works on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.batches import MicroBatch
from trainer.models.stateless_rng import sequence_keys
from trainyard.spec.job import JobSpec


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

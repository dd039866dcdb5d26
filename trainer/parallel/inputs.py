"""The model's inputs on one rank: this rank's tokens of each sequence, on its device.

Shapes: B sequences in a micro-batch, S tokens of a sequence that this rank handles.
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
from trainer.parallel.mesh import MeshCoordinates
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout


@dataclass(frozen=True)
class Inputs:
    """The arguments of the model's `forward`."""

    tokens: Tensor
    """Token ids [B, S]."""
    labels: Tensor
    """Next token of each token [B, S]."""
    keys: Tensor | None
    """Random key of each sequence [B], int64; None without dropout."""
    segments: Tensor | None
    """Document index of each token in the whole sequence, int32; None without document masks."""

    @property
    def keywords(self) -> dict[str, Tensor]:
        """Keyword arguments for every pipeline stage, without those that are None."""
        given = {"keys_B": self.keys, "segments_BS": self.segments}
        return {name: tensor for name, tensor in given.items() if tensor is not None}


class InputMaker:
    """Converts micro-batches to this rank's inputs.

    Args:
        spec: has the seed and the dropout probability.
        device: device of the model.
        tokens_S: indices in the sequence of this rank's tokens, int64 on the host.
    """

    def __init__(self, spec: JobSpec, *, device: torch.device, tokens_S: Tensor) -> None:
        self._seed = spec.training.seed
        # The spec does not show whether an own model uses dropout.
        self._has_dropout = spec.model.dropout > 0 or spec.model.is_own
        self._device = device
        whole = tokens_S.numel() == spec.training.seq_len
        self._tokens_S = None if whole else tokens_S.numpy()

    def __call__(self, step: int | None, batch: MicroBatch) -> Inputs:
        """Return the inputs for a micro-batch; the host does not wait for a copy.

        Without a `step`, as in validation, there are no random keys and so no dropout.
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
        # Only a copy from pinned memory is asynchronous. The caching host allocator reuses the
        # buffer only after the copy, so the reference may be dropped here.
        return tensor.pin_memory().to(self._device, non_blocking=True)


def take_tokens(
    model: Model, spec: JobSpec, *, layout: Layout, coordinates: MeshCoordinates
) -> None:
    """Set the tokens that this rank's attention, queries and residual stream cover."""
    attended_S = attended_tokens(spec, layout, coordinates)
    exchanged = spec.parallelism.cp_method == "ulysses"
    model.positions.take(
        attended_S=attended_S,
        stream_S=stream_tokens(attended_S, spec, layout=layout, coordinates=coordinates),
        queries_S=torch.arange(spec.training.seq_len, device="cpu") if exchanged else attended_S,
    )


def attended_tokens(spec: JobSpec, layout: Layout, coordinates: MeshCoordinates) -> Tensor:
    """Return tokens for which this rank computes queries, keys and values, int64 on the host.

    Tensor-parallel ranks have the same tokens; context-parallel ranks divide them. With
    `allgather_kv`, rank r of n has the chunks r and 2n-1-r of 2n: an early chunk, which attends to
    few keys, and a late chunk, which balances the load. With `ulysses`, rank r has the r-th of n
    parts; each rank attends with all tokens, but with a part of the heads.
    """
    tokens_S = torch.arange(spec.training.seq_len, device="cpu")
    if spec.parallelism.cp_method == "ulysses" or layout.cp == 1:
        return tokens_S.chunk(layout.cp)[coordinates.cp]
    chunks = tokens_S.chunk(2 * layout.cp)
    return torch.cat((chunks[coordinates.cp], chunks[-1 - coordinates.cp]))


def stream_tokens(
    attended_S: Tensor, spec: JobSpec, *, layout: Layout, coordinates: MeshCoordinates
) -> Tensor:
    """Return the attended tokens in this rank's residual stream, int64 on the host.

    With sequence parallelism, the tensor-parallel ranks divide them, in order.
    """
    parts = layout.tp if spec.parallelism.sequence_parallel else 1
    return attended_S.chunk(parts)[coordinates.tp if parts > 1 else 0]

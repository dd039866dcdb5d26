"""One save in progress: its future, and the staged copies of its tensors."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import nullcontext

import torch
from torch import Tensor

from trainer.checkpoint.chunks.divided_tensor import TensorChunk
from trainer.errors import LaunchError
from trainyard.protocol.manifest import Manifest, TrainState


class PendingSave(Future[Manifest]):
    """The future of one save; training may change the saved tensors after they are staged."""

    def __init__(
        self,
        state: TrainState,
        *,
        kind: str,
        staging: Staging | None = None,
        buffers: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Describe the save; nothing starts yet.

        Args:
            state: counters of the saved step.
            kind: reason of the save.
            staging: buffers to which tensors are copied before they are written; by default,
                tensors are written from their own memory.
            buffers: copies, by name, of tensors that may change before the save stages them.
        """
        super().__init__()
        self.state = state
        self.kind = kind
        self.staged = threading.Event()
        """Set when the copies of the tensors are complete or, without copies, when the save ends.

        A failure of the save sets the event too. Training may change the tensors after the event.
        """
        self._staging = staging
        self._buffers = buffers or {}

    def stage(self, tensors: Mapping[TensorChunk, Tensor]) -> Mapping[TensorChunk, Tensor]:
        """Return the tensors to write. After a copy, training may change the original tensors."""
        tensors = {chunk: self._buffers.get(chunk.name, t) for chunk, t in tensors.items()}
        if self._staging is None:
            return tensors
        copies = self._staging.copy(tensors)
        self.staged.set()
        return copies


class Staging:
    """Buffers in host memory, created at the first save and reused by all later ones.

    On a GPU, the copies run on a separate stream during the next forward and backward pass. This
    needs pinned buffers, because a copy to pageable memory blocks the thread for each tensor.
    """

    def __init__(self, device: torch.device, *, pinned: bool) -> None:
        """Store the settings; the first copy allocates the buffers."""
        self._device = device
        self._pinned = pinned
        self._buffers: dict[TensorChunk, Tensor] = {}
        self._stream = torch.Stream(device) if device.type != "cpu" else None
        self._ready: torch.Event | None = None

    def mark(self) -> None:
        """Record an event that the device reaches when this step's tensors are complete.

        The training thread calls this, because the step runs on its stream. The copies run on a
        separate stream and wait for the event.
        """
        if self._stream is not None:
            self._ready = torch.accelerator.current_stream(self._device).record_event()

    def copy(self, tensors: Mapping[TensorChunk, Tensor]) -> dict[TensorChunk, Tensor]:
        """Return contiguous copies in host memory; they are valid until the next call."""
        if self._stream is not None and self._ready is not None:
            self._stream.wait_event(self._ready)
        copies = {}
        with self._stream or nullcontext():
            for chunk, tensor in tensors.items():
                buffer = self._buffers.get(chunk)
                if buffer is None or (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
                    buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pinned)
                    self._buffers[chunk] = buffer
                copies[chunk] = buffer.copy_(tensor, non_blocking=self._pinned)
        if self._stream is not None:
            self._stream.synchronize()  # now tensors may change and copies be read
        return copies


def staging_of(mode: str, device: torch.device) -> Staging | None:
    """Return the buffers for an `async_mode`; None if tensors are written without a copy.

    Raises:
        LaunchError: the mode needs an accelerator.
    """
    if mode == "disabled":
        return None
    pinned = mode == "async_with_pinned_mem"
    if pinned and device.type == "cpu":
        raise LaunchError(
            "checkpoint.async_mode='async_with_pinned_mem' needs an accelerator, whose copies "
            "pinned memory makes faster, but this rank computes on the CPU; legal: disabled, async"
        )
    return Staging(device, pinned=pinned)

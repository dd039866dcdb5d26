"""Copies of the tensors that a rank writes, so that training may go on and change them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import MetadataIndex

from trainer.errors import LaunchError


class Staging:
    """Buffers in the memory of the host; made at the first save and used again by all later ones.

    On a GPU the copies run on a stream of their own beside the next forward and backward pass.
    Pinned buffers are needed for that: copying into any other memory waits for each tensor.
    """

    def __init__(self, device: torch.device, *, pinned: bool) -> None:
        """Take no memory yet."""
        self._device = device
        self._pinned = pinned
        self._buffers: dict[MetadataIndex, Tensor] = {}
        self._stream = torch.Stream(device) if device.type != "cpu" else None
        self._ready: torch.Event | None = None

    def mark(self) -> None:
        """Say that the tensors are as they are to be saved, once the device gets here.

        The training thread calls it, whose stream the work of the step is on.
        """
        if self._stream is not None:
            self._ready = torch.accelerator.current_stream(self._device).record_event()

    def copy(self, tensors: Mapping[MetadataIndex, Tensor]) -> dict[MetadataIndex, Tensor]:
        """Return copies in the host's memory, contiguous; they are good until the next call."""
        copies = {}
        with self._on_its_stream():
            for index, tensor in tensors.items():
                buffer = self._buffer(index, tensor)
                buffer.copy_(tensor, non_blocking=self._pinned)
                copies[index] = buffer
        if self._stream is not None:
            self._stream.synchronize()
        return copies

    def _buffer(self, index: MetadataIndex, like: Tensor) -> Tensor:
        buffer = self._buffers.get(index)
        if buffer is None or buffer.shape != like.shape or buffer.dtype != like.dtype:
            buffer = torch.empty(like.shape, dtype=like.dtype, pin_memory=self._pinned)
            self._buffers[index] = buffer
        return buffer

    def _on_its_stream(self) -> AbstractContextManager[object]:
        if self._stream is None or self._ready is None:
            return nullcontext()
        self._stream.wait_event(self._ready)
        return self._stream


def staging_of(mode: str, device: torch.device) -> Staging | None:
    """Return the buffers of a way to save; None where tensors are written as they lie.

    Raises:
        LaunchError: it needs an accelerator.
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

"""Buffers that an own model's forward pass changes: every rank gets rank 0's values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainer.errors import LaunchError
from trainer.models.own.own_model import OwnModel
from trainer.models.own.watched_buffers import Versions, WatchedBuffers


class SharedBuffers:
    """Copies the changed buffers of rank 0 to the other ranks, by one broadcast per step.

    Each rank changes its buffers with its own sequences, but a checkpoint holds one rank's buffers.
    Without the copies, a resume would change the buffers of the other ranks. torch's DDP does the
    same (`broadcast_buffers`).
    """

    def __init__(self, model: OwnModel) -> None:
        """Describe the copies; nothing is copied yet.

        Args:
            model: an own model. Its `changed_buffers` are copied. If they are unknown, all buffers
                that checkpoints contain are copied.
        """
        known = model.changed_buffers
        self._buffers = WatchedBuffers(model)
        self._shapes = {
            name: buffer.shape
            for name, buffer in self._buffers.tensors().items()
            if (known is None or name in known) and not isinstance(buffer, DTensor)
        }
        self._before: Versions = {}

    def watch(self) -> None:
        """Watch for changes from now on, if this is the first call.

        The first forward pass calls this. Before it, the load of a checkpoint also changes buffers.
        """
        if not self._before:
            self._before = self._buffers.versions()

    def share(self) -> None:
        """Give this rank the buffers of rank 0; a collective, unless no buffer is copied.

        Raises:
            LaunchError: the forward pass has changed a buffer that is not copied, or the shape of a
                buffer.
        """
        for name in self._buffers.changed(self._before):
            if name not in self._shapes:
                raise LaunchError(
                    f"own model: forward changes the buffer {name}, which it did not on the "
                    "meta device; legal on several ranks: one that each forward changes, or one "
                    "that is the same on all ranks, with persistent=False"
                )
        if self._shapes:
            held = self._buffers.tensors()
            self._copy([(name, held[name]) for name in self._shapes])
        self._before = self._buffers.versions()

    @torch.no_grad()
    def _copy(self, buffers: Sequence[tuple[str, Tensor]]) -> None:
        for name, buffer in buffers:
            if buffer.shape != self._shapes[name]:
                raise LaunchError(
                    f"own model: forward gives the buffer {name} the shape "
                    f"{list(buffer.shape)}; legal on several ranks: its first one, "
                    f"{list(self._shapes[name])}"
                )
        # The widest elements come first, so that each tensor starts at a multiple of its element
        # size.
        ordered = sorted((each for _, each in buffers), key=Tensor.element_size, reverse=True)
        bytes_of_all = torch.cat([each.reshape(-1).view(torch.uint8) for each in ordered])
        dist.broadcast(bytes_of_all, src=0)
        parts = bytes_of_all.split([each.nbytes for each in ordered])
        for each, part in zip(ordered, parts, strict=True):
            each.copy_(part.view(each.dtype).view(each.shape))

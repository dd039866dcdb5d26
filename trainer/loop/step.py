"""One optimizer step over this rank's micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from trainer.data.batches import MicroBatch
from trainer.data.digest import sequence_hash
from trainer.loop.gradients import clip_grad_norm
from trainer.parallel.forward_backward import ForwardBackward
from trainyard.spec.job import JobSpec


@dataclass(frozen=True)
class StepResult:
    """What a step leaves behind; the tensors are on the device, and not waited for."""

    loss: torch.Tensor
    """This rank's share of the mean loss over the tokens of the global batch, float32 `[]`."""
    grad_norm: torch.Tensor
    """Global L2 norm of the gradient before clipping, `[]`."""
    hashes: list[int]
    """Hash of each sequence that this rank trained on, in the order in which it ran them."""


class TrainStep:
    """Forward, backward and update; nothing in it waits for the device."""

    def __init__(
        self,
        forward_backward: ForwardBackward,
        optimizer: Optimizer,
        spec: JobSpec,
        *,
        stages: ProcessGroup | None = None,
        before_update: Callable[[], None] = lambda: None,
    ) -> None:
        """Touch nothing yet.

        Args:
            forward_backward: gives the parameters their gradients.
            optimizer: changes them.
            spec: the job.
            stages: as in `clip_grad_norm`.
            before_update: called right before the parameters change.
        """
        self._before_update = before_update
        self._forward_backward = forward_backward
        self._stages = stages
        self._optimizer = optimizer
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._spec = spec

    def __call__(self, step: int, micro_batches: Sequence[MicroBatch]) -> StepResult:
        """Complete step `step` (counted from 1) and return what it measured."""
        loss = self._forward_backward(step, micro_batches)
        limit = self._spec.training.max_grad_norm or math.inf
        grad_norm = clip_grad_norm(self._parameters, limit, stages=self._stages)
        rate = self._spec.schedule.rate(step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._before_update()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return StepResult(loss=loss, grad_norm=grad_norm, hashes=_hashes(micro_batches))


def _hashes(micro_batches: Sequence[MicroBatch]) -> list[int]:
    """Return the hash of each sequence, taken of the very buffers that the model was given."""
    return [
        sequence_hash(position, tokens_S)
        for batch in micro_batches
        if batch.weight
        for position, tokens_S in zip(batch.positions.tolist(), batch.tokens, strict=True)
    ]

"""Forward and backward over the micro-batches of one step, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from trainer.data.batches import MicroBatch
from trainer.models.base import Model
from trainer.parallel.fsdp import reshard, set_gradient_sync
from trainer.parallel.inputs import InputMaker
from trainyard.spec.job import JobSpec


class ForwardBackward(Protocol):
    """Runs the model on a rank's micro-batches of a global batch, as the layout asks for."""

    def __call__(self, step: int, micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Add up gradients, and return this rank's share of the mean loss, float32 `[]`."""
        ...

    def evaluate(self, micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Return this rank's part of the summed loss, float32 `[]`; no gradient, nothing dropped.

        It leaves no trace: neither in weights nor in what the next step computes. There are as many
        micro-batches as in a step.
        """
        ...


class MicroBatchLoop:
    """Runs the whole model on each micro-batch in turn.

    The loss of a micro-batch is the sum over its tokens divided by the tokens of the whole global
    batch, so gradients need only be added up: over micro-batches here, and over ranks.
    """

    def __init__(self, model: Model, spec: JobSpec, device: torch.device) -> None:
        self._model = model
        self._spec = spec
        self._device = device
        self._inputs = InputMaker(spec, device=device, tokens_S=model.positions.attended)

    def __call__(self, step: int, micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Add up gradients, and return this rank's share of the mean loss, float32 `[]`."""
        total = torch.zeros((), device=self._device)
        for index, batch in enumerate(micro_batches):
            last_round = index == len(micro_batches) - 1
            set_gradient_sync(self._model, self._spec, last_round=last_round)
            inputs = self._inputs(step, batch)
            loss_sum = self._model(inputs.tokens, inputs.labels, **inputs.keywords)
            loss = loss_sum / self._spec.tokens_per_step
            loss.backward()
            total += loss.detach()
        return total

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Return this rank's part of the summed loss, float32 `[]`; nothing is dropped."""
        self._model.eval()
        total = torch.zeros((), device=self._device)
        for batch in micro_batches:
            inputs = self._inputs(None, batch)
            total += self._model(inputs.tokens, inputs.labels, **inputs.keywords)
        self._model.train()
        reshard(self._model)
        return total

"""One optimizer step over this rank's micro-batches.

Shapes: B sequences of a micro-batch, S tokens of a sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim import Optimizer

from specs.job import JobSpec
from specs.lr_schedule import learning_rate
from trainer.data.batches import MicroBatch
from trainer.data.digest import sequence_hash
from trainer.gradients import clip_grad_norm
from trainer.loss import token_loss_sum
from trainer.model.llama import Transformer
from trainer.model.noise import SequenceNoise
from trainer.parallelize import set_gradient_sync


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
        model: Transformer,
        optimizer: Optimizer,
        spec: JobSpec,
        device: torch.device,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._spec = spec
        self._device = device

    def __call__(self, step: int, micro_batches: Sequence[MicroBatch]) -> StepResult:
        """Complete step `step` (counted from 1) and return what it measured.

        The loss of a micro-batch is the sum over its tokens divided by the tokens of the whole
        global batch, so gradients need only be added up: over micro-batches here, and over ranks
        once, in the last backward.
        """
        loss = torch.zeros((), device=self._device)
        hashes: list[int] = []
        for index, batch in enumerate(micro_batches):
            set_gradient_sync(self._model, last_round=index == len(micro_batches) - 1)
            loss += self._forward_backward(step, batch)
            if batch.weight:  # the very buffer that the model was given
                pairs = zip(batch.positions.tolist(), batch.tokens, strict=True)
                hashes += [sequence_hash(position, tokens_S) for position, tokens_S in pairs]
        limit = self._spec.training.max_grad_norm
        grad_norm = clip_grad_norm(self._parameters, math.inf if limit is None else limit)
        rate = learning_rate(self._spec, step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        return StepResult(loss=loss, grad_norm=grad_norm, hashes=hashes)

    def _forward_backward(self, step: int, batch: MicroBatch) -> torch.Tensor:
        tokens_BS = self._on_device(batch.tokens)
        labels_BS = self._on_device(batch.labels)
        noise = None
        if self._spec.model.dropout > 0:
            seed = self._spec.training.seed
            noise = SequenceNoise(seed, step, self._on_device(batch.positions))
        share = batch.weight / self._spec.tokens_per_step
        # The logits get no name here: they are freed as soon as backward is done with them.
        loss = token_loss_sum(self._model(tokens_BS, noise), labels_BS) * share
        loss.backward()
        return loss.detach()

    def _on_device(self, array: NDArray[np.int64]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cpu":
            return tensor
        # From pinned memory the copy runs beside the host.
        return tensor.pin_memory().to(self._device, non_blocking=True)

"""One optimizer step: forward and backward over the micro-batches, clipping, and the update."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import FSDPModule

from trainer.data.batches import MicroBatch
from trainer.data.digest import sequence_hash
from trainer.loop.clipping import clip_grad_norm
from trainer.loop.optimizer import ShardAdamW
from trainer.loop.shared_buffers import SharedBuffers
from trainer.loop.used_parameters import SameParameters, UsedParameters
from trainer.metrics.metrics_logger import StepMetrics
from trainer.models.base import DataDependence, Model
from trainer.models.own.own_model import OwnModel
from trainer.parallel.fsdp import reduces, reshard, set_gradient_sync
from trainer.parallel.inputs import InputMaker
from trainyard.protocol.manifest import TrainState
from trainyard.spec.job import JobSpec
from trainyard.training.data_stream import advanced


class ForwardBackward(Protocol):
    """Interface for running the model on a rank's micro-batches of a global batch."""

    def __call__(self, step: int, micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Accumulate gradients; return this rank's part of the mean loss, float32 `[]`."""
        ...

    def evaluate(self, micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Return this rank's part of the summed loss, float32 `[]`, without gradients or dropout.

        The call changes neither weights nor the result of the next step. The number of
        micro-batches must equal that of a training step.
        """
        ...


class MicroBatchLoop:
    """Runs the whole model on each micro-batch in turn.

    The loss of a micro-batch is the sum of its tokens' losses, divided by the number of tokens in
    the global batch. So the gradient of the batch is the plain sum over micro-batches and ranks.
    """

    def __init__(self, model: Model, spec: JobSpec, device: torch.device) -> None:
        self._model = model
        self._spec = spec
        self._device = device
        self._inputs = InputMaker(spec, device=device, tokens_S=model.positions.attended)
        self._used: UsedParameters | None = None
        self._same: SameParameters | None = None
        self._buffers: SharedBuffers | None = None
        if isinstance(model, OwnModel) and dist.get_world_size() > 1:
            self._buffers = SharedBuffers(model)
        if isinstance(model, OwnModel) and isinstance(model, FSDPModule):
            if model.data_dependence == DataDependence.NOWHERE:
                self._same = SameParameters(model, model.used_parameters)
            else:
                self._used = UsedParameters(model)

    def __call__(self, step: int, micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Accumulate gradients; return this rank's part of the mean loss, float32 `[]`."""
        self._watch_buffers()
        total = torch.zeros((), device=self._device)
        for index, batch in enumerate(micro_batches):
            last_round = index == len(micro_batches) - 1
            set_gradient_sync(self._model, self._spec, last_round=last_round)
            inputs = self._inputs(step, batch)
            loss_sum = self._model(inputs.tokens, inputs.labels, **inputs.keywords)
            loss = loss_sum / self._spec.tokens_per_step
            if self._used is not None:
                self._used.counts = batch.weight > 0
            loss.backward()
            if self._used is not None:
                self._used.end_round()
            elif self._same is not None and reduces(self._spec, last_round=last_round):
                self._same.check()
            # Summed on the device, because `.item()` would make the host wait for each micro-batch.
            total += loss.detach()
        if self._used is not None:
            self._used.drop_others()
        if self._buffers is not None:
            self._buffers.share()
        return total

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Return this rank's part of the summed loss, float32 `[]`, without dropout."""
        self._watch_buffers()
        self._model.eval()
        total = torch.zeros((), device=self._device)
        for batch in micro_batches:
            inputs = self._inputs(None, batch)
            total += self._model(inputs.tokens, inputs.labels, **inputs.keywords)
        self._model.train()
        reshard(self._model)
        return total

    def _watch_buffers(self) -> None:
        if self._buffers is not None:
            self._buffers.watch()


class TrainStep:
    """Runs forward, backward and update of each step; the host does not wait for the device."""

    def __init__(
        self,
        forward_backward: ForwardBackward,
        optimizer: ShardAdamW,
        spec: JobSpec,
        *,
        stages: ProcessGroup | None = None,
        before_update: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the step; nothing runs yet.

        Args:
            forward_backward: computes the gradients.
            optimizer: updates the parameters.
            spec: spec of the job.
            stages: as for `clip_grad_norm`.
            before_update: called right before the parameters change. It must wait until a
                background save has copied them, and until the preflight is committed.
        """
        self._before_update = before_update
        self._forward_backward = forward_backward
        self._stages = stages
        self._optimizer = optimizer
        self._spec = spec

    def __call__(self, step: int, micro_batches: Sequence[MicroBatch]) -> StepMetrics:
        """Run step `step` (counted from 1); return its measurements."""
        loss = self._forward_backward(step, micro_batches)
        limit = self._spec.training.max_grad_norm or math.inf
        grad_norm = clip_grad_norm(self._optimizer, limit, stages=self._stages)
        rate = self._spec.schedule.rate(step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._before_update()
        self._optimizer.step()
        self._optimizer.zero_grad()
        hashes = [
            sequence_hash(position, tokens_S)  # hashes of the buffers that the model gets
            for batch in micro_batches
            if batch.weight
            for position, tokens_S in zip(batch.positions.tolist(), batch.tokens, strict=True)
        ]
        return StepMetrics(loss=loss, grad_norm=grad_norm, hashes=hashes)


def one_step_on(state: TrainState, spec: JobSpec) -> TrainState:
    """Return the counters after one more step."""
    sequences = spec.training.global_batch_size
    data = state.data.model_copy(
        update={
            "position": advanced(state.data.position, sequences, state.data.skipped),
            "consumed": state.data.consumed + sequences,
        }
    )
    tokens = state.tokens + spec.tokens_per_step
    return state.model_copy(update={"step": state.step + 1, "tokens": tokens, "data": data})

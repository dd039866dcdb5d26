"""Pipeline parallelism: the schedule that runs micro-batches through the stages of all ranks.

Shapes: m micro-batches per run of the schedule, B sequences in each, S tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import P2POp, ProcessGroup
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from trainer.data.batches import NO_LABEL, MicroBatch
from trainer.models.head import TokenLoss
from trainer.parallel.fsdp import reshard
from trainer.parallel.inputs import InputMaker
from trainer.parallel.parallelize import Stages
from trainer.torch_versions import allocate_buffers, refuse_split_backward, release_buffers
from trainyard.axes.pp import microbatches_of, stages_of
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.training.pipeline_schedule import SPLIT_BACKWARD

_T = TypeVar("_T", bound=np.generic)


class Pipeline:
    """Runs the micro-batches of a step through the pipeline stages of all ranks.

    Every rank of a pipeline gets the same micro-batches. The rank with the last stage returns the
    loss; the other ranks return 0.
    """

    def __init__(
        self,
        stages: Stages,
        group: ProcessGroup,
        *,
        spec: JobSpec,
        layout: Layout,
        device: torch.device,
    ) -> None:
        """Build the schedule; nothing runs yet.

        Args:
            stages: stages of this rank, by number.
            group: group of the pipeline's ranks.
            spec: has the schedule, the shape of micro-batches, and the number of tokens per step.
            layout: determines the partition of the global batch.
            device: device of the stages.

        Raises:
            LaunchError: this version of torch cannot run the schedule.
        """
        refuse_split_backward(spec.parallelism.pp_schedule)
        if spec.parallelism.pp_schedule in SPLIT_BACKWARD:
            for module in chain.from_iterable(stage.modules() for stage in stages.values()):
                if isinstance(module, TokenLoss):
                    module.backward_runs_once = False
        self._stages = stages
        self._device = device
        self._tokens_per_step = spec.tokens_per_step
        self._size = spec.training.micro_batch_size
        self._microbatches = microbatches_of(spec.facts(layout))
        model = next(iter(stages.values()))
        self._inputs = InputMaker(spec, device=device, tokens_S=model.positions.attended)
        count = len(stages_of(spec.facts(layout)))
        self._first, self._last = 0 in stages, count - 1 in stages
        # Without given inputs and outputs, torch would infer the shapes by a run of the whole
        # pipeline.
        with torch.device("meta"):
            tokens_BS = torch.empty(self._size, model.positions.attended.numel(), dtype=torch.int64)
            stream_BSD = torch.empty(
                *(self._size, model.positions.stream.numel(), spec.architecture.dim),
                dtype=getattr(torch, spec.training.param_dtype),
                requires_grad=True,
            )
            loss = torch.empty((), requires_grad=True)
        own = [
            _Stage(
                stage,
                index,
                count,
                device,
                input_args=tokens_BS if index == 0 else stream_BSD,
                output_args=loss if index == count - 1 else stream_BSD,
                group=group,
            )
            for index, stage in stages.items()
        ]
        schedule = get_schedule_class(spec.parallelism.pp_schedule)
        self._schedule = schedule(
            own[0] if issubclass(schedule, PipelineScheduleSingle) else own,
            n_microbatches=self._microbatches,
            loss_fn=self._loss,
            scale_grads=False,
        )

    def __call__(self, step: int, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Accumulate gradients; return this rank's part of the mean loss, float32 `[]`."""
        total = torch.zeros((), device=self._device)
        for run in self._runs(micro_batches):
            total += self._run(step, run)
        return total

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Return this rank's part of the summed loss, float32 `[]`, without dropout."""
        total = torch.zeros((), device=self._device)
        for stage in self._stages.values():
            stage.eval()
        for run in self._runs(micro_batches):
            total += self._run(None, run)
        for stage in self._stages.values():
            stage.train()
            reshard(stage)
        return total

    def _runs(self, micro_batches: Sequence[MicroBatch]) -> list[Sequence[MicroBatch]]:
        m = self._microbatches
        return [micro_batches[start : start + m] for start in range(0, len(micro_batches), m)]

    def _run(self, step: int | None, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Run the schedule once; return the sum of the losses, or 0 without the last stage."""
        joined = _joined(micro_batches, self._size, count=self._microbatches)
        inputs = self._inputs(step, joined)
        # All ranks read the batch, so only the residual stream is sent between stages.
        tokens = (inputs.tokens,) if self._first else ()
        labels = {"target": inputs.labels, "labels_BS": inputs.labels} if self._last else {}
        losses: list[Tensor] = []
        run = self._schedule.eval if step is None else self._schedule.step
        run(*tokens, losses=losses, return_outputs=False, **labels, **inputs.keywords)
        if not losses:
            return torch.zeros((), device=self._device)
        return torch.stack([loss.detach() for loss in losses]).sum()

    def _loss(self, loss_sum: Tensor, _labels_BS: Tensor) -> Tensor:
        """Return the tensor for backward; the last stage has already computed the loss."""
        return loss_sum / self._tokens_per_step if torch.is_grad_enabled() else loss_sum


class _Stage(PipelineStage):
    """torch's pipeline stage with three workarounds, numbered below."""

    # 1. Up to torch 2.14, a stage holds a receive buffer for every micro-batch all the time. Here a
    # buffer is allocated before its receive and released after it is read.

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[P2POp]:
        allocate_buffers(self.args_recv_info[fwd_chunk_id], self.device)
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        if self.has_backward:
            allocate_buffers(self.grad_recv_info[bwd_chunk_id], self.device)
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> tuple[Tensor, ...]:
        activations: tuple[Tensor, ...] = super()._retrieve_recv_activations(fwd_chunk_id)
        release_buffers(self.args_recv_info[fwd_chunk_id])
        # torch 2.11 sets `requires_grad` on its own buffers, which `allocate_buffers` has replaced.
        for activation in activations:
            activation.requires_grad_(self.has_backward)
        return activations

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> tuple[Tensor | None, ...]:
        gradients: tuple[Tensor | None, ...] = super()._retrieve_recv_grads(bwd_chunk_id)
        release_buffers(self.grad_recv_info[bwd_chunk_id])
        return gradients

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._prepare_forward_infra(*args, **kwargs)
        release_buffers(chain.from_iterable(self.args_recv_info.values()))
        return result

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._prepare_backward_infra(*args, **kwargs)
        release_buffers(chain.from_iterable(self.grad_recv_info.values()))
        return result

    # 2. A schedule that splits backward collects the weights of the stage before the stage runs,
    # and silently skips weights that FSDP has resharded. So gather them first.

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        if backward_type != "full":
            for module in self.submod.modules():
                if isinstance(module, FSDPModule):
                    module.unshard()
        return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)

    # 3. In evaluation, torch passes gradients between two stages of one rank, although there are
    # none.

    def get_local_bwd_output(self, mb_index: int) -> tuple[Tensor | None, ...]:
        if not self.has_backward:
            return ()
        gradients: tuple[Tensor | None, ...] = super().get_local_bwd_output(mb_index)  # type: ignore[no-untyped-call]
        return gradients

    def set_local_bwd_input(
        self, next_stage_bwd_outputs: tuple[Tensor | None, ...], mb_index: int
    ) -> None:
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)


def _joined(micro_batches: Sequence[MicroBatch], size: int, *, count: int) -> MicroBatch:
    """Return `count` micro-batches of `size` sequences as one; pad missing sequences.

    A schedule is built for one shape and one number of micro-batches. Padding has no labels, so it
    adds zeros to loss and gradients.
    """
    segments = [batch.segments for batch in micro_batches if batch.segments is not None]
    return MicroBatch(
        tokens=_filled([batch.tokens for batch in micro_batches], size, 0, count=count),
        labels=_filled([batch.labels for batch in micro_batches], size, NO_LABEL, count=count),
        positions=_filled([batch.positions for batch in micro_batches], size, 0, count=count),
        weight=1,
        segments=_filled(segments, size, 0, count=count) if segments else None,
    )


def _filled(arrays: Sequence[NDArray[_T]], size: int, filler: int, *, count: int) -> NDArray[_T]:
    whole = np.full_like(arrays[0], filler, shape=(count, size, *arrays[0].shape[1:]))
    for place, array in zip(whole, arrays, strict=False):
        place[: len(array)] = array
    return whole.reshape(count * size, *arrays[0].shape[1:])

"""The work of one rank of many to plan a save and a resume, alone in a process.

A fake process group stands for the other ranks, and the meta device for memory. The rank's modules
are built and parallelised as in training, so that its tensors have their real divisions. Data of
other ranks are given: the tensors of the other pipeline stages, described by their first ranks
before.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainer.checkpoint.chunks.dcp_metadata import chunk_count
from trainer.checkpoint.chunks.divided_tensor import DividedTensor, divided
from trainer.checkpoint.chunks.index_file import ChunkIndex, index_of, parse_index
from trainer.checkpoint.tensors import TrainTensors, train_tensors
from trainer.checkpoint.writer.save_plan import SavePlanner, writing_ranks
from trainer.loop.optimizer import build_optimizer, materialize_state
from trainer.models.families import build_model
from trainer.parallel.mesh import build_mesh
from trainer.parallel.parallelize import parallelize
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout

T = TypeVar("T")
Stage = tuple[DividedTensor, ...]


@dataclass(frozen=True)
class PlanCost:
    """Processor seconds of one rank, and sizes."""

    rank: int
    first_plan: float
    """Describe the tensors, agree within the stage, compute the share."""
    later_plan: float
    """List the tensors of the model and verify that the plan still holds."""
    index: float
    """Make `index.json`; on rank 0, once per attempt."""
    resume_plan: float
    """Parse the index and find each slice's place, on the same layout."""
    resume_files: int
    """Files that contain these slices."""
    index_bytes: int
    named_bytes: int
    """Bytes of the tensors' description that a stage's first rank sends."""
    chunks: int
    """Chunks of all tensors, on all ranks."""
    even: float
    """Bytes of the fullest writer among this rank's replicas, relative to their mean."""


def job(size: str, layout: Layout) -> JobSpec:
    """Return a job of this size on a layout."""
    axes = {name: value for name, value in layout.sizes.items() if value > 1}
    return parse_job_spec(
        {
            "model": {"family": "llama3", "size": size},
            "training": {"seq_len": 8192, "global_batch_size": 8 * layout.dp * layout.pp},
            "parallelism": {"dp_shard": layout.dp_shard, **axes},
            "resources": {"world_size": layout.world_size, "device": "cuda"},
            "compile": {"enabled": False},
        }
    )


def describe_stage(size: str, layout: Layout, stage: int) -> Stage:
    """Return the tensors of a pipeline stage, as its first rank describes them."""
    rank = stage * (layout.world_size // layout.pp)
    model, optimizer = _state(size, layout, rank)
    return divided(train_tensors(model, optimizer), rank=rank)


def plan_cost(size: str, layout: Layout, rank: int, stages: list[Stage]) -> PlanCost:
    """Plan a save and a resume on one rank; it must be alone in its process."""
    model, optimizer = _state(size, layout, rank)
    listed = TrainTensors()
    tensors = listed(model, optimizer)
    writers = writing_ranks("all", layout, shared=False)
    planner = _Alone(writers, layout, stages)
    first, plan = _timed(lambda: planner.plan(tensors))
    later, again = _timed(lambda: planner.plan(listed(model, optimizer)))
    assert again is plan
    index, content = _timed(plan.index.to_bytes)
    resume, files = _timed(lambda: _files_of_a_resume(content, layout, tensors=tensors, rank=rank))
    return PlanCost(
        rank=rank,
        first_plan=first,
        later_plan=later,
        index=index,
        resume_plan=resume,
        resume_files=files,
        index_bytes=len(content),
        named_bytes=len(pickle.dumps(stages[rank * layout.pp // layout.world_size])),
        chunks=chunk_count(plan.index),
        even=_evenness(plan.index, layout, rank),
    )


def resharding_cost(
    size: str, saved: Layout, stages: list[Stage], layout: Layout, rank: int
) -> float:
    """Return processor seconds of one rank for planning a resume from another layout."""
    model, optimizer = _state(size, layout, rank)
    writers = writing_ranks("all", saved, shared=False)
    content = index_of(stages, world_size=saved.world_size, writers=writers).to_bytes()
    tensors = train_tensors(model, optimizer)
    return _timed(lambda: _files_of_a_resume(content, saved, tensors=tensors, rank=rank))[0]


def _state(size: str, layout: Layout, rank: int) -> tuple[Any, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    spec = job(size, layout).on_layout(layout)
    model = build_model(spec)
    parallelize(model, build_mesh(layout, "cpu"), spec=spec, layout=layout)
    optimizer = build_optimizer(model, spec)
    materialize_state(optimizer)
    return model, optimizer


class _Alone(SavePlanner):
    """A planner without other ranks; their messages are given."""

    def __init__(self, writers: tuple[int, ...], layout: Layout, stages: list[Stage]) -> None:
        group = dist.group.WORLD
        assert group is not None
        super().__init__(writers, layout, group)
        self._stages = stages
        self._size = layout.world_size // layout.pp

    def _named_by(self, rank: int, mine: Stage) -> Stage:
        pickle.dumps(mine)  # the cost of the message
        return self._stages[rank // self._size]


def _files_of_a_resume(
    content: bytes, saved: Layout, *, tensors: dict[str, Tensor], rank: int
) -> int:
    index = parse_index(content, saved)
    files = set()
    for tensor in divided(tensors, rank=rank):
        box = tensor.kind.box_of(rank)
        files |= {chunk.file for chunk in index.overlapping(tensor.name, *box)}
    return len(files)


def _evenness(index: ChunkIndex, layout: Layout, rank: int) -> float:
    stride = layout.dp_shard * layout.cp * layout.tp
    stage = layout.world_size // layout.pp
    first = rank // stage * stage + rank % stride
    loads = [
        sum(chunk.bytes for chunk in index.ownership.share(first + number * stride).written)
        for number in range(layout.dp_replicate)
    ]
    return max(loads) / (sum(loads) / len(loads))


def _timed(action: Callable[[], T]) -> tuple[float, T]:
    started = time.process_time()
    result = action()
    return time.process_time() - started, result

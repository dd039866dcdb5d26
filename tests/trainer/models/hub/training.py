"""Trains small hub models on a layout; one process per rank trains all of them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tests.trainer.models.hub.architectures import hub_spec, write_config
from tests.trainer.ranks import run_ranks
from trainer.data.batches import NO_LABEL, MicroBatch
from trainer.loop.build import assemble
from trainer.loop.step import TrainStep
from trainer.parallel.mesh import MeshCoordinates
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout

STEPS = 3
TIMEOUT_SECONDS = 300.0
Courses = dict[str, list[tuple[float, float]]]
"""Loss and gradient norm of each step, by case."""
Case = tuple[str, dict[str, Any], dict[str, dict[str, Any]]]
"""An architecture, changes of its config, and changes of sections of the spec."""


def spec_of(folder: Path, case: Case) -> JobSpec:
    """Write the config of a case to a folder; return the spec of its job."""
    kind, config, sections = case
    spec = hub_spec(write_config(folder / "model", kind, **config))
    return parse_job_spec(
        {**spec, **{name: {**spec.get(name, {}), **new} for name, new in sections.items()}}
    )


def batches(spec: JobSpec, layout: Layout, step: int, *, dp_rank: int) -> list[MicroBatch]:
    """Return a rank's micro-batches of random tokens, with documents if the spec has masks."""
    numbers = np.random.default_rng(step)
    count, length = spec.training.global_batch_size, spec.training.seq_len
    tokens = numbers.integers(0, 16, (count, length + 1))
    ends = numbers.random((count, length)) < 0.15
    segments = ends.cumsum(axis=1).astype(np.int32)
    found = []
    for offsets in spec.batch_partition(layout).for_rank(dp_rank):
        rows = list(offsets) or [0]
        labels = tokens[rows, 1:] if len(offsets) else np.full((1, length), NO_LABEL)
        found.append(
            MicroBatch(
                np.ascontiguousarray(tokens[rows, :-1]),
                np.ascontiguousarray(labels),
                np.array(rows),
                int(len(offsets) > 0),
                segments[rows] if spec.data.document_masks else None,
            )
        )
    return found


def train(cases: dict[str, Case], layout: Layout) -> Courses:
    """Train each case on this rank; return the courses."""
    courses: Courses = {}
    dp_rank = MeshCoordinates.of(dist.get_rank(), layout).dp
    for name, case in cases.items():
        with TemporaryDirectory() as folder:
            spec = spec_of(Path(folder), case).on_layout(layout)
            made = assemble(spec, layout, torch.device("cpu"), roots={"data": folder})
            step_on = TrainStep(made.forward_backward, made.optimizer, spec, stages=made.stages)
            courses[name] = []
            for step in range(1, STEPS + 1):
                measured = step_on(step, batches(spec, layout, step, dp_rank=dp_rank))
                loss = measured.loss.clone()
                dist.all_reduce(loss)
                courses[name].append((loss.item() / layout.tp, measured.grad_norm.item()))
    return courses


def courses_on(layout: Layout, cases: dict[str, Case]) -> Courses:
    """Train each case on the ranks of a layout."""
    ranks = layout.world_size
    courses: Courses = run_ranks(ranks, train, cases, layout, timeout_seconds=TIMEOUT_SECONDS)[0]
    return courses

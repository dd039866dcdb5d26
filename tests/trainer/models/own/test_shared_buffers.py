"""Buffers changed by a custom model's forward: equal on all ranks and in each checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.models.own import branching
from tests.trainer.models.own.test_data_dependence import batches, count, job_of, spec_of
from tests.trainer.ranks import RankError, run_ranks
from tests.trainer.runs import Meddling
from tests.trainer.stored import stored_tensors
from trainer.loop.build import assemble
from trainer.loop.step import TrainStep
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout

TWO = Layout(dp_shard=2)
LAYOUTS = [TWO, Layout(dp_replicate=2), Layout(dp_replicate=2, dp_shard=2)]


def roots(folder: Path) -> dict[str, str]:
    shutil.copy(branching.__file__, folder)
    return {"data": str(folder)}


def train(spec: JobSpec, layout: Layout, roots: dict[str, str]) -> dict[str, Any]:
    """Return the buffers after three steps."""
    made = assemble(spec, layout, torch.device("cpu"), roots=roots)
    step_on = TrainStep(made.forward_backward, made.optimizer, spec)
    for step in range(1, 4):
        step_on(step, batches(step, torch.distributed.get_rank(), layout.world_size))
    return {name: buffer.tolist() for name, buffer in made.model.named_buffers()}


def one_rank_of(rank: int, ranks: int, steps: int = 3) -> dict[str, Any]:
    """Return the buffers after one rank's sequences; each step starts with those of rank 0."""
    mean, seen, last, odd = torch.zeros(()), [0, 0], [0.0], [False]
    for step in range(1, steps + 1):
        for batch in batches(step, rank, ranks):
            tokens = torch.from_numpy(batch.tokens)
            mean = 0.9 * mean + 0.1 * tokens.float().mean()
            seen = [count + len(tokens) for count in seen]
            last, odd = tokens[0, :1].tolist(), (tokens[0, :3] % 2 == 1).tolist()
    return {
        "net.mean": pytest.approx(mean.item()),
        "net.seen": seen,
        "net.odd": odd,
        "net.blocks.0.last": last,
    }


@pytest.mark.parametrize(
    "layout", [TWO, Layout(dp_replicate=2), Layout(dp_replicate=2, dp_shard=2)]
)
def test_those_of_the_first_rank_are_on_every_rank(layout: Layout, tmp_path: Path) -> None:
    found = run_ranks(layout.world_size, train, spec_of("Averaging"), layout, roots(tmp_path))
    expected = one_rank_of(0, layout.world_size)
    assert one_rank_of(1, layout.world_size) != expected, "ranks see other sequences"
    for buffers in found:
        assert {name: buffers[name] for name in expected} == expected


def test_one_broadcast_a_step_is_all_that_they_cost(tmp_path: Path) -> None:
    given = roots(tmp_path)
    counted = {
        kind: run_ranks(2, count, spec_of(kind), TWO, given)[0][1]
        for kind in ("Plain", "Averaging")
    }
    assert counted["Averaging"] == {**counted["Plain"], "broadcast_": 1}


def test_a_buffer_that_the_trial_left_alone_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"forward changes the buffer net\.seen, which it did not"):
        run_ranks(2, train, spec_of("Surprising"), TWO, roots(tmp_path))
    (alone,) = run_ranks(1, train, spec_of("Surprising"), Layout(), roots(tmp_path))
    assert alone["net.seen"] == len(batches(1, 0, 1)) * 3


def evaluate_and_train(spec: JobSpec, layout: Layout, roots: dict[str, str]) -> None:
    made = assemble(spec, layout, torch.device("cpu"), roots=roots)
    mine = batches(1, torch.distributed.get_rank(), layout.world_size)
    made.forward_backward.evaluate(mine)
    made.forward_backward(1, mine)


def test_a_buffer_that_an_evaluation_changes_is_refused_by_name(tmp_path: Path) -> None:
    spec = spec_of("CountingEvaluations")
    with pytest.raises(RankError, match=r"forward changes the buffer net\.scale, which it did not"):
        run_ranks(2, evaluate_and_train, spec, TWO, roots(tmp_path))


def test_a_resume_loads_a_buffer_that_no_forward_changes(tmp_path: Path) -> None:
    job = job_of(tmp_path, "Scaling")
    stopped = job.launch(1, TWO, Meddling(stop_after=2))
    resume = job.committed()[str(stopped.outcome.checkpoint_id)]
    resumed = job.launch(2, Layout(dp_replicate=2), resume=resume)
    assert resumed.outcome.outcome == "succeeded"
    last = job.committed()[str(resumed.outcome.checkpoint_id)]
    assert stored_tensors(job, last)["model.net.scale"].tolist() == [1.5]

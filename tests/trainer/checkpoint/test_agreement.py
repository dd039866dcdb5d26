"""All ranks of a pipeline stage hold the same tensors, or the first save fails on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.trainer.checkpoint.toy import JOB, Refusal, build, manager, refusal, state_at
from tests.trainer.ranks import run_ranks
from trainer.checkpoint.writer.save_plan import SavePlanner
from trainer.errors import RunError
from trainyard.spec.layout import Layout

FSDP2 = Layout(dp_shard=2)


def _save_other_tensors(root: Path, fault: str) -> Refusal:
    model, optimizer = build(FSDP2, seed=1)
    if dist.get_rank() == 1:
        name = "extra" if fault == "more" else "count"
        model.register_buffer(name, torch.zeros(3))
    elif fault == "shape":
        model.register_buffer("count", torch.zeros(2))
    saver = manager(root, FSDP2)
    with pytest.raises(RunError) as caught:
        saver.save(model, optimizer, state_at(0), kind="preflight")
    return refusal(caught.value)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("more", "rank 1 holds model.extra as float32 (3,) divided by [], and rank 0 of the same"),
        ("shape", "model.count as float32 (3,) divided by [], and rank 0 of the same pipeline "),
    ],
)
def test_a_rank_with_other_tensors_is_named(tmp_path: Path, fault: str, words: str) -> None:
    answers = run_ranks(2, _save_other_tensors, tmp_path, fault)
    assert answers[0][:3] == answers[1][:3]
    assert answers[0][0] == "CheckpointError"
    assert words in answers[0][1]
    assert not (tmp_path / JOB / "a1" / "step-0").exists()


def _plan_of_stages() -> tuple[list[str], bool, bool]:
    group = dist.group.WORLD
    assert group is not None
    rank, layout = dist.get_rank(), Layout(pp=2)
    planner = SavePlanner([0, 1], layout, group)
    tensors: dict[str, Tensor] = {f"model.{rank}": torch.ones(4), "model.both": torch.ones(2)}
    plan = planner.plan(tensors)
    names = sorted(chunk.name for chunk in plan.share.written)
    moved = planner.plan(dict(tensors) if rank == 0 else tensors)
    same = moved.share is plan.share and moved.index is plan.index
    if rank == 1:
        tensors = {**tensors, "model.new": torch.ones(1)}
    return names, same, "model.new" in planner.plan(tensors).index.ownership.tensors


def test_what_two_stages_hold_is_written_once_and_changes_are_planned_anew() -> None:
    (first, *kept), (second, *also_kept) = run_ranks(2, _plan_of_stages)
    assert (first, second) == (["model.0", "model.both"], ["model.1"])
    assert kept == also_kept == [True, True]

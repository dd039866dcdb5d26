"""The preflight runs during the first step and is committed before that step's update."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.points import at_points
from tests.trainer.ranks import RankError, run_ranks
from tests.trainer.runs import JOB, Attempt, SmallJob
from trainer.checkpoint.save_folder import Point
from trainer.loop.optimizer import ShardAdamW
from trainer.loop.step import MicroBatchLoop
from trainer.loop.train import train
from trainer.metrics.run_writer import RunWriter
from trainer.run import open_run
from trainyard.run.directory import RunDirectory
from trainyard.run.failures import FailureReason
from trainyard.spec.layout import Layout

TWO = Layout(dp_shard=2)
HELD_SECONDS = 20.0
"""Longest hold of a save that waits for the first step; a save that blocks training exceeds it."""


def _train_with_a_held_preflight(run_directory: str, log_folder: str) -> None:
    """Train; the preflight continues on each rank once its first step has computed gradients.

    `<rank>.log` in the log folder lists the actions of the rank, in order.
    """
    directory, rank = Path(run_directory), int(os.environ["RANK"])
    log = Path(log_folder) / f"{rank}.log"
    computed = threading.Event()
    compute, update = MicroBatchLoop.__call__, ShardAdamW.step

    def done(what: str) -> None:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")

    def computing(self: MicroBatchLoop, step: int, micro_batches: Any) -> Any:
        loss = compute(self, step, micro_batches)
        done(f"computed {step}")
        computed.set()
        return loss

    def updating(self: ShardAdamW, closure: None = None) -> None:
        done("updated")
        update(self, closure)

    def hold(point: Point, path: Path) -> None:
        if "step-0" not in path.parts:
            return
        if point is Point.BEGUN:
            computed.wait(HELD_SECONDS)
        elif point is Point.REPORTED:
            done("preflight committed")

    MicroBatchLoop.__call__ = computing  # type: ignore[method-assign]
    ShardAdamW.step = updating  # type: ignore[method-assign]
    writer = RunWriter(RunDirectory(directory), rank=rank, local_rank=rank)
    world_size = int(os.environ["WORLD_SIZE"])
    try:
        with at_points(hold):
            train(open_run(directory, world_size=world_size, roots={}), writer)
    except BaseException as error:
        writer.fail(error)
        raise


def _logs(folder: Path) -> list[list[str]]:
    return [path.read_text().splitlines() for path in sorted(folder.glob("*.log"))]


@pytest.mark.parametrize(
    "changed",
    [
        {"checkpoint": {"async_mode": "disabled"}},
        {"checkpoint": {"async_mode": "async"}},
        {"compile": {"enabled": True, "backend": "aot_eager"}},
    ],
    ids=["disabled", "async", "compiled"],
)
def test_the_first_step_computes_during_the_preflight_and_updates_after_it(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    job = SmallJob(tmp_path).changed(
        tmp_path, training={"steps": 2}, lr_schedule={"warmup_steps": 0}, **changed
    )
    run = job.prepare(1, TWO)
    run_ranks(2, _train_with_a_held_preflight, str(run), str(tmp_path), initialize=False)
    expected = ["computed 1", "preflight committed", "updated", "computed 2", "updated"]
    assert _logs(tmp_path) == [expected, expected]
    first = job.committed()[f"{JOB}.a1.step-0"]
    assert (first.kind, first.train_state.step) == ("preflight", 0)
    # The wait belongs to no step: goodput counts it as start-up.
    stall = Attempt(run).values("checkpoint/stall_seconds")[1]
    assert stall > 0


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_no_weight_is_updated_when_the_preflight_fails_during_the_first_step(
    tmp_path: Path, mode: str
) -> None:
    job = SmallJob(tmp_path).changed(tmp_path, checkpoint={"async_mode": mode})
    run = job.prepare(1, TWO)
    in_the_way = job.storage / JOB / "a1" / "step-0"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("no folder")
    with pytest.raises(RankError):
        run_ranks(2, _train_with_a_held_preflight, str(run), str(tmp_path), initialize=False)
    assert _logs(tmp_path) == [["computed 1"], ["computed 1"]]
    attempt = Attempt(run)
    assert (attempt.error.reason, attempt.outcome.step) == (FailureReason.CHECKPOINT_ERROR, 0)
    assert attempt.error.path == str(in_the_way)
    assert not (run / "metrics.jsonl").exists()
    assert job.committed() == {}

"""Guards on logged values: the verdict, the record, and the error in the script."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.library.run.session.test_run_checkpoints import run_of
from trainyard.protocol.record_parser import parse_record
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.checkpoints.program_storage import UnusableCheckpointError
from trainyard.run.failures import BadWindow, Failure, FailureReason
from trainyard.run.session.loss_watch import WARM_UP, BadLossError, LossWatch
from trainyard.run.session.process_place import ProcessPlace


def watch(*, start: int = 0, **guard: Any) -> LossWatch:
    return LossWatch(guard, start=start)


def test_without_guards_nothing_is_judged() -> None:
    judged = [LossWatch({}, start=0), watch(non_finite_loss="ignore", loss_spike="ignore")]
    for each in judged:
        for step in range(1, 30):
            assert each.judge(step, {"train/loss": 1.0}) is None
        assert each.judge(30, {"train/loss": math.nan, "train/grad_norm": math.inf}) is None
        assert each.judge(31, {"train/loss": 1e9}) is None


@pytest.mark.parametrize("name", ["train/loss", "train/grad_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_a_failure(name: str, value: float) -> None:
    failure = watch(non_finite_loss="stop").judge(7, {name: value})
    assert failure is not None
    assert (failure.reason, failure.metric) == (FailureReason.NON_FINITE_LOSS, name)
    assert (failure.step, failure.rank, failure.bad_window) == (7, 0, None)
    assert failure.message == f"{name} is {value} at step 7"


def test_a_rollback_names_the_steps_since_the_last_good_one() -> None:
    judged = watch(non_finite_loss="rollback", start=4)
    failure = judged.judge(6, {"train/loss": math.nan})
    assert failure is not None
    assert failure.bad_window == BadWindow(start=4, end=6, first_step=5)
    judged.judge(10, {"train/loss": 1.0})
    judged.judge(11, {"validation/loss": math.nan})  # is not judged
    failure = judged.judge(12, {"train/loss": math.nan})
    assert failure is not None
    assert failure.bad_window == BadWindow(start=10, end=12, first_step=11)
    assert failure.message == "train/loss is nan at step 12; step 10 was good"


def test_a_spike_is_judged_after_the_warm_up() -> None:
    judged = watch(loss_spike="stop", spike_factor=5.0)
    assert judged.judge(0, {"train/loss": 100.0}) is None
    judged = watch(loss_spike="stop", spike_factor=5.0)
    for step in range(WARM_UP):
        assert judged.judge(step, {"train/loss": 1.0}) is None
    assert judged.judge(WARM_UP, {"train/loss": 1.05}) is None
    failure = judged.judge(WARM_UP + 1, {"train/loss": 2.0})
    assert failure is not None
    assert failure.reason == FailureReason.LOSS_SPIKE
    assert "train/loss is 2, above the limit 1." in failure.message


def test_a_bad_loss_is_recorded_before_the_script_gets_its_error(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        spec={"guard": {"non_finite_loss": "rollback"}},
        resume={"checkpoint_id": "job-1.a1.step-4", "path": "job-1/a1/step-4", "step": 4},
    )
    run.log({"train/loss": 1.0}, step=5)
    with pytest.raises(BadLossError, match="train/loss is nan at step 6; step 5 was good"):
        run.log({"train/loss": math.nan}, step=6)
    run.close()
    failure = parse_record(Failure, (tmp_path / "run/error.json").read_bytes())
    assert failure.bad_window == BadWindow(start=5, end=6, first_step=6)
    assert b"NaN" in (tmp_path / "run/metrics.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["train/loss★", "@train/loss", "train/loss,", "_train/grad_norm"])
def test_only_the_exact_names_are_judged(tmp_path: Path, name: str) -> None:
    run = run_of(tmp_path, spec={"guard": {"non_finite_loss": "stop"}})
    run.log({name: math.nan}, step=6)
    assert not (tmp_path / "run/error.json").exists()


def test_only_rank_0_is_judged(tmp_path: Path) -> None:
    place = ProcessPlace(rank=1, world_size=2, local_rank=1)
    run = run_of(tmp_path, spec={"guard": {"non_finite_loss": "stop"}}, place=place)
    run.log({"train/loss": math.nan}, step=6)
    assert not (tmp_path / "run/error.json").exists()


def test_a_parent_that_cannot_be_used_is_recorded(tmp_path: Path) -> None:
    point = {"checkpoint_id": "job-1.a1.step-4", "path": "job-1/a1/step-4", "step": 4}
    run = run_of(tmp_path, attempt=2, resume=point)
    with pytest.raises(UnusableCheckpointError, match="is incomplete"):
        run.resume_from  # noqa: B018
    failure = parse_record(Failure, (tmp_path / "run/error.json").read_bytes())
    assert failure.reason == FailureReason.CHECKPOINT_ERROR
    assert failure.load is not None
    assert failure.load.checkpoint_id == "job-1.a1.step-4"
    assert failure.load.fault == CheckpointFault.FILE_MISSING

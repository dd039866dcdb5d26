"""How an attempt ended, from what was seen: each rule of docs/lifecycle-failures.md on its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainyard.protocol.states import DesiredState
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.records import ExitRecord, Outcome, RankExit
from worker.supervisor.exit_classification import MISSING_LIBRARY, Findings, judge

SEEN = Findings(node="n", started=True)
STOPPED = Outcome(outcome="stopped", step=7, checkpoint_id="c")
SUCCEEDED = Outcome(outcome="succeeded", step=9, checkpoint_id="c")
NAN = Failure(reason=FailureReason.NON_FINITE_LOSS, message="NaN", rank=1, step=4)
HANG = Failure(reason=FailureReason.HANG, message="silence")


def end(rank: int, *, code: int | None = None, signal: str | None = None) -> RankExit:
    return RankExit(rank=rank, pid=rank + 100, exit_code=code, signal=signal, time=float(rank))


KILLED = (end(0, signal="SIGKILL"), end(1, code=1))


def verdict(**seen: Any) -> ExitRecord:
    return judge(replace(SEEN, **seen), time=1.0)


@pytest.mark.parametrize(
    ("seen", "outcome", "reason"),
    [
        ({"outcome": SUCCEEDED}, "succeeded", None),
        ({"outcome": SUCCEEDED, "ranks": KILLED}, "succeeded", None),
        ({"outcome": SUCCEEDED, "desired": DesiredState.STOP}, "succeeded", None),
        ({"outcome": SUCCEEDED, "desired": DesiredState.CANCEL}, "succeeded", None),
        ({"outcome": SUCCEEDED, "preempted": True}, "succeeded", None),
        ({"outcome": STOPPED}, "stopped", None),
        ({"outcome": STOPPED, "desired": DesiredState.STOP}, "stopped", None),
        ({"outcome": STOPPED, "preempted": True}, "failed", "preempted"),
        (
            {"outcome": STOPPED, "preempted": True, "desired": DesiredState.STOP},
            "stopped",
            None,
        ),
        ({"ranks": KILLED, "desired": DesiredState.CANCEL}, "cancelled", None),
        ({"ranks": KILLED, "outrun": True}, "cancelled", None),
        ({"ranks": KILLED}, "failed", "trainer_error"),
        ({"ranks": KILLED, "desired": DesiredState.STOP}, "failed", "trainer_error"),
        ({"ranks": KILLED, "error": NAN}, "failed", "trainer_error"),
        ({"ranks": KILLED, "memory_ran_out": True}, "failed", "out_of_memory"),
        ({"ranks": (end(1, code=1),), "error": NAN}, "failed", "non_finite_loss"),
        ({"ranks": (end(1, code=1),), "memory_ran_out": True}, "failed", "trainer_error"),
        ({"ranks": (end(0, signal="SIGTERM"),), "preempted": True}, "failed", "preempted"),
        ({"ranks": (end(0),)}, "failed", "trainer_error"),
        ({"ranks": (end(0, code=0),)}, "failed", "trainer_error"),
        ({"fault": HANG, "ranks": KILLED}, "failed", "hang"),
        ({"started": False, "desired": DesiredState.STOP}, "stopped", None),
        ({"started": False, "preempted": True}, "failed", "preempted"),
        ({"started": False, "fault": HANG, "desired": DesiredState.STOP}, "failed", "hang"),
    ],
)
def test_verdict(seen: dict[str, Any], outcome: str, reason: str | None) -> None:
    record = verdict(**seen)
    assert record.outcome == outcome
    assert (record.failure.reason if record.failure else None) == reason


def test_the_first_end_is_the_cause() -> None:
    failure = verdict(ranks=KILLED, error=NAN).failure
    assert failure is not None
    assert (failure.rank, failure.signal, failure.node) == (0, "SIGKILL", "n")


def test_an_error_keeps_what_the_trainer_said() -> None:
    failure = verdict(ranks=(end(1, code=1), end(0, code=1)), error=NAN).failure
    assert failure == replace(NAN, node="n", exit_code=1)


def test_an_abort_with_a_flight_record_is_a_hang() -> None:
    aborted = (end(0, signal="SIGABRT"),)
    failure = verdict(ranks=aborted, flight_record="/run/flight_recorder/rank-0").failure
    assert failure is not None
    assert failure.reason == FailureReason.HANG
    assert failure.path == "/run/flight_recorder/rank-0"
    assert "NCCL's watchdog" in failure.message
    other = verdict(ranks=aborted).failure
    assert other is not None
    assert (other.reason, other.path) == (FailureReason.TRAINER_ERROR, None)


def test_an_end_that_was_not_seen_is_named() -> None:
    failure = verdict(ranks=(end(0),)).failure
    assert failure is not None
    assert "its exit was not observed" in failure.message


IMPORTED = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'x'\n"


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({}, "program_start_error"),
        ({"output": IMPORTED + "[W] a thread ends\n"}, "program_start_error"),
        ({"output": IMPORTED + "During handling\nmine.OddError: x\n"}, "program_error"),
        ({"output": f"ImportError: libcuda.so.1: {MISSING_LIBRARY}: x\n"}, "program_error"),
        ({"output": None}, "program_error"),
        ({"seconds_unheard": None}, "program_error"),
        ({"seconds_unheard": 301.0}, "program_error"),
        ({"ranks": (end(0, signal="SIGKILL"),)}, "program_error"),
        ({"program_ranks": None}, "trainer_error"),
    ],
)
def test_an_early_error_of_loading_a_program_is_its_own_reason(
    seen: dict[str, Any], reason: str
) -> None:
    usual: dict[str, Any] = {
        "ranks": (end(0, code=1),),
        "program_ranks": 1,
        "seconds_unheard": 2.0,
        "output": IMPORTED,
    }
    failure = verdict(**(usual | seen)).failure
    assert failure is not None
    assert failure.reason == reason


@pytest.mark.parametrize(
    ("code", "seen", "reason"),
    [
        (137, {"memory_ran_out": True}, "out_of_memory"),
        (137, {"memory_ran_out": True, "error": NAN}, "out_of_memory"),
        (137, {"output": IMPORTED, "seconds_unheard": 2.0}, "program_error"),
        (134, {"flight_record": "/run/flight_recorder/rank-0"}, "hang"),
        (143, {"preempted": True}, "preempted"),
        (255, {"memory_ran_out": True}, "program_error"),
        (1, {"memory_ran_out": True}, "program_error"),
    ],
)
def test_a_signal_that_a_shell_passes_on_counts_as_one(
    code: int, seen: dict[str, Any], reason: str
) -> None:
    failure = verdict(ranks=(end(0, code=code),), program_ranks=1, **seen).failure
    assert failure is not None
    assert failure.reason == reason
    if reason in ("out_of_memory", "hang"):
        assert f"exit code {code}, by which a shell" in failure.message
        assert failure.exit_code == code


def test_an_exit_code_of_the_trainer_is_no_signal() -> None:
    failure = verdict(ranks=(end(0, code=137),), memory_ran_out=True).failure
    assert failure is not None
    assert failure.reason == FailureReason.TRAINER_ERROR

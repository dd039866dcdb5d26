"""A chain of resumes takes each action once, whatever the moment at which `prove` looks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainyard.client.errors import ConflictError
from trainyard.client.sdk import Client
from trainyard.protocol.rest.common import ProblemDetails
from trainyard.protocol.states import JobState
from trainyard.prove.bench import Bench, BenchKeys
from trainyard.prove.rungs import resumes
from trainyard.prove.rungs.resumes import EndedEarlyError, Link

WANTED = [Link(4, "kill", 9), Link(2, "stop", 33), Link(3, "finish", 51)]


class Yard:
    """Records the calls of a chain."""

    def __init__(self, *, conflict: bool = False, saved_by: tuple[int, ...] = (1, 2, 3)) -> None:
        self.calls: list[Any] = []
        self._conflict = conflict
        self._saved_by = saved_by

    def checkpoints(self, job_id: str) -> list[Any]:
        return [SimpleNamespace(attempt=number) for number in self._saved_by]

    def stop(self, job_id: str, *, reason: str) -> None:
        self._note("stop")

    def cancel(self, job_id: str, *, reason: str) -> None:
        self._note("cancel")

    def resume(self, job_id: str, *, world_size: int) -> None:
        self._note(("resume", world_size))

    def _note(self, call: object) -> None:
        self.calls.append(call)
        if self._conflict:
            raise ConflictError(
                ProblemDetails(title="the job has ended", status=409, detail="", request_id="r")
            )


def job(state: JobState, attempt: int | None, step: int = 0, *, pending: bool = False) -> Any:
    return SimpleNamespace(
        id="j",
        name="n",
        state=state,
        reason=None,
        pending=object() if pending else None,
        progress=SimpleNamespace(step=step),
        current_attempt=None if attempt is None else SimpleNamespace(number=attempt, failure=None),
    )


def advance(tmp_path: Path, now: Any, **faults: Any) -> tuple[bool, list[Any]]:
    yard = Yard(**faults)
    bench = Bench(
        cast(Client, yard),
        slots=4,
        device="cpu",
        keys=BenchKeys(own="k", reference="r"),
        folder=tmp_path,
        deadline=0.0,
    )
    return resumes._advance(bench, now, WANTED), yard.calls


@pytest.mark.parametrize(
    ("now", "calls", "ended"),
    [
        (job(JobState.QUEUED, None), [], False),
        (job(JobState.RUNNING, 1, 8), [], False),
        (job(JobState.RUNNING, 1, 9), ["cancel"], False),
        (job(JobState.STOPPING, 1, 10), [], False),
        (job(JobState.CANCELLED, 1, 10), [("resume", 2)], False),
        (job(JobState.QUEUED, 1, 10, pending=True), [], False),
        (job(JobState.RUNNING, 2, 32), [], False),
        (job(JobState.RUNNING, 2, 34), ["stop"], False),
        (job(JobState.STOPPED, 2, 35), [("resume", 3)], False),
        (job(JobState.RUNNING, 3, 70), [], False),
        (job(JobState.SUCCEEDED, 3, 80), [], True),
        (job(JobState.FAILED, 2, 20), [], True),
        # Somebody else stopped the last attempt.
        (job(JobState.STOPPED, 3, 60), [], True),
    ],
)
def test_the_state_of_the_job_decides(
    tmp_path: Path, now: Any, calls: list[Any], ended: bool
) -> None:
    assert advance(tmp_path, now) == (ended, calls)


def test_an_attempt_that_finished_first_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(EndedEarlyError, match="attempt 1 finished before its end"):
        advance(tmp_path, job(JobState.SUCCEEDED, 1, 80))


def test_an_attempt_that_ends_at_this_moment_is_no_error(tmp_path: Path) -> None:
    now = job(JobState.RUNNING, 1, 9)
    assert advance(tmp_path, now, conflict=True) == (False, ["cancel"])


def test_an_attempt_is_ended_only_after_it_has_saved(tmp_path: Path) -> None:
    now = job(JobState.RUNNING, 2, 34)
    assert advance(tmp_path, now, saved_by=(1,)) == (False, [])
    assert advance(tmp_path, now, saved_by=(1, 2)) == (False, ["stop"])


def test_the_commands_end_and_resume_the_job_that_they_submit() -> None:
    assert resumes._commands(WANTED) == [
        "trainyard kill @last  # from step 9 on",
        "trainyard resume @last --world-size 2",
        "trainyard stop @last  # from step 33 on",
        "trainyard resume @last --world-size 3",
    ]

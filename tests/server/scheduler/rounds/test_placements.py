"""Placements: many jobs in a transaction, or one by one if any fails."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.errors import DeadlockDetected
from sqlalchemy.exc import OperationalError

from server.core.context import Context
from server.core.database.rows import Job
from server.core.errors import UnreadableError
from server.scheduler.rounds import placements
from tests.server.harness import Harness
from tests.server.statements import statements
from trainyard.base.problems import Problem
from trainyard.protocol.states import JobState
from trainyard.spec.job import JobSpec


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("of one job alone"),
        OperationalError("INSERT", {}, DeadlockDetected("deadlock detected")),
    ],
)
def test_an_error_of_one_job_keeps_no_other_from_its_slots(
    harness: Harness,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    harness.add_node(slots=2)
    job_ids = []
    for _ in range(3):
        job_ids.append(harness.submit())
        harness.clock.advance(1)
    first, broken, last = job_ids
    start = placements._start

    def fail_for_one(context: Context, connection: Any, job: Job, **rest: Any) -> Any:
        if job.id == broken:
            raise error
        return start(context, connection, job, **rest)

    monkeypatch.setattr(placements, "_start", fail_for_one)
    harness.place()
    assert harness.job(last).state == JobState.QUEUED  # the slot was for the other job
    harness.place()

    states = [harness.job(job_id).state for job_id in (first, broken, last)]
    assert states == [JobState.STARTING, JobState.QUEUED, JobState.STARTING]
    assert f"job {broken} could not be placed" in caplog.text
    reason = f"its placement failed ({type(error).__name__}): see the scheduler's log"
    assert harness.job(broken).reason == reason
    assert len(harness.dispatcher.sent) == 2


def test_a_lost_connection_ends_the_round_for_all_jobs(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Placed one by one, each job would wait for the database again."""
    harness.add_node(slots=3)
    job_ids = [harness.submit() for _ in range(3)]
    tried = []

    def fail(*_: Any, **__: Any) -> Any:
        tried.append(1)
        closed = Exception("server closed the connection")
        raise OperationalError("INSERT", {}, closed, connection_invalidated=True)

    with monkeypatch.context() as patched:
        patched.setattr(placements, "_start", fail)
        with pytest.raises(OperationalError):
            harness.place()
    assert len(tried) == 1
    assert {harness.job(job_id).state for job_id in job_ids} == {JobState.QUEUED}
    assert harness.place() == 3


def test_jobs_with_an_error_of_their_own_leave_the_batch(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.add_node(slots=3)
    unreadable, refused, sound = (harness.submit(name=name) for name in ("un", "re", "so"))
    start = placements._start

    def fail_for_one(context: Context, connection: Any, job: Job, **rest: Any) -> Any:
        if job.id == unreadable:
            raise UnreadableError("of a later version")
        return start(context, connection, job, **rest)

    def refuse_one(context: Context, spec: JobSpec) -> list[Problem]:
        return [Problem(pointer="/env", detail="is too large")] if spec.name == "re" else []

    monkeypatch.setattr(placements, "_start", fail_for_one)
    monkeypatch.setattr(placements, "not_allowed", refuse_one)
    harness.place()
    assert harness.job(sound).state == JobState.STARTING
    assert harness.job(unreadable).state == JobState.QUEUED
    assert harness.job(unreadable).reason == "of a later version"
    assert harness.job(refused).state == JobState.FAILED


def test_jobs_that_are_placed_together_cost_no_further_statement(
    harness: Harness, context: Context
) -> None:
    counts = []
    for number in (2, 20):
        harness.add_node(f"node-{number}", slots=number)
        job_ids = [harness.submit() for _ in range(number)]
        with statements(context) as seen:
            assert harness.place() == number
        counts.append(len(seen))
        assert {harness.kinds(job_id)[-1] for job_id in job_ids} == {"placed"}
    assert counts[0] == counts[1]

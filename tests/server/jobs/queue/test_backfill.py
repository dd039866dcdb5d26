"""Backfill in the scheduler's rounds: durations from former attempts, and its views."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, text, update

from server.core.database.tables import events, jobs
from server.core.visibility.job_labels import label, plain
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import stop
from server.jobs.queue.groups import enter_groups
from server.scheduler.rounds.round import DECIDE_AGAIN_SECONDS
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.statements import statements
from trainyard.protocol.rest.jobs import Progress
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import JobState
from trainyard.run.failures import FailureReason

STEPS = 100


def set_left(harness: Harness, job_id: str, seconds: float) -> None:
    """Give a running job a known pace, as its metrics do."""
    progress = Progress(step=1, steps=STEPS, seconds_left=seconds)
    with harness.context.database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(progress=progress))


def stopped_at_10(harness: Harness, **sections: Any) -> str:
    """Return a job that trained 10 steps in 20 s after a start of 5 s, saved and stopped."""
    job_id, (supervisor,) = harness.launched(training={"steps": STEPS}, **sections)
    harness.clock.advance(5)
    supervisor.train(0)
    harness.clock.advance(20)
    supervisor.train(10)
    harness.commit_checkpoint(job_id, 10)
    stop(harness.context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    return job_id


@pytest.fixture
def behind_a_large_one(harness: Harness) -> str:
    """A resumed job, which needs twice 185 s and a minute, behind one of 4 slots; 3 are held."""
    harness.add_node("a", slots=4)
    job_id = stopped_at_10(harness, name="short")
    harness.running(name="long", resources={"world_size": 3})
    harness.submit(name="large", resources={"world_size": 4})
    assert harness.place() == 0
    harness.clock.advance(1)
    resume(harness.context, job_id, ResumeRequest(), actor=ADA)
    return job_id


def running(harness: Harness) -> str:
    with harness.context.database.read() as connection:
        of_long = select(jobs.c.id).where(jobs.c.name == "long")
        return str(connection.scalar(of_long))


def test_a_resumed_job_that_ends_in_time_starts_before_a_larger_one(
    harness: Harness, behind_a_large_one: str
) -> None:
    set_left(harness, running(harness), 431)
    assert harness.place() == 1
    assert harness.job(behind_a_large_one).state == JobState.STARTING
    with harness.context.database.read() as connection:
        placed = select(events.c.data, events.c.message).where(
            events.c.job_id == behind_a_large_one, events.c.kind == "placed"
        )
        data, message = connection.execute(placed.order_by(events.c.id.desc()).limit(1)).one()
    assert data["backfilled_before"] == label("default", "large")
    assert plain(message, SYSTEM_SCOPE) == "Attempt 2 got 1 slot on a, backfilled before large"


def test_one_that_would_end_too_late_waits_until_time_has_passed(
    harness: Harness, behind_a_large_one: str
) -> None:
    set_left(harness, running(harness), 429)
    assert harness.place() == 0
    assert harness.job(behind_a_large_one).reason == (
        "needs 1 slot, 1 free, kept for large, which is ahead, 3 held by long"
    )
    set_left(harness, running(harness), 460)  # it became slower
    assert harness.place() == 0, "nothing but time changed"
    harness.clock.advance(DECIDE_AGAIN_SECONDS)
    assert harness.place() == 1


def durations(harness: Harness, job_id: str) -> tuple[float | None, str | None]:
    """Enter a job into its group, and return its expected duration with the kind of slot."""
    enter_groups(harness.context)
    columns = select(jobs.c.lasts_seconds, jobs.c.lasts_on).where(jobs.c.id == job_id)
    with harness.context.database.read() as connection:
        row = connection.execute(columns).one()
    return row.lasts_seconds, row.lasts_on


def test_a_duration_is_that_of_the_steps_left_from_the_checkpoint(harness: Harness) -> None:
    harness.add_node("a", slots=4)
    job_id = stopped_at_10(harness)
    expected: list[tuple[dict[str, Any], tuple[float | None, str | None]]] = [
        ({}, (5 + 90 * 2.0, "cpu")),
        ({"steps": 50}, (5 + 40 * 2.0, "cpu")),
        ({"world_size": 2}, (None, None)),  # the pace of this layout is not known
    ]
    for fields, duration in expected:
        resume(harness.context, job_id, ResumeRequest(**fields), actor=ADA)
        assert durations(harness, job_id) == duration
        stop(harness.context, job_id, actor=ADA, reason="")


def test_a_job_that_took_no_step_has_no_duration(harness: Harness) -> None:
    harness.add_node("a", slots=4)
    job_id, (supervisor,) = harness.launched()
    harness.clock.advance(5)
    supervisor.train(0)
    supervisor.end("failed", FailureReason.PREEMPTED)
    assert harness.job(job_id).state == JobState.QUEUED
    harness.clock.advance(60)
    assert durations(harness, job_id) == (None, None)


def test_the_durations_of_many_jobs_take_as_many_statements_as_that_of_one(
    harness: Harness,
) -> None:
    harness.add_node("a", slots=4)
    jobs_again = [stopped_at_10(harness) for _ in range(4)]
    counts = []
    for some in (jobs_again[:1], jobs_again[1:]):
        for job_id in some:
            resume(harness.context, job_id, ResumeRequest(), actor=ADA)
        with statements(harness.context) as seen:
            assert enter_groups(harness.context) == {*some}
        counts.append(len(seen))
        assert {durations(harness, job_id) for job_id in some} == {(5 + 90 * 2.0, "cpu")}
    assert counts[0] == counts[1]


def test_an_unreadable_former_attempt_fails_no_round(harness: Harness) -> None:
    harness.add_node("a", slots=2)
    job_id = stopped_at_10(harness)
    resume(harness.context, job_id, ResumeRequest(), actor=ADA)
    with harness.context.database.write() as connection:  # as for a server that was downgraded
        later = text("UPDATE attempts SET layout = :layout WHERE job_id = :id")
        connection.execute(later, {"layout": '{"later": 1}', "id": job_id})
    assert durations(harness, job_id) == (None, None)
    other = harness.submit(name="other")
    assert harness.place() == 2
    assert harness.job(job_id).state == harness.job(other).state == JobState.STARTING


@pytest.mark.parametrize("left", [1e12, 1e300, float("inf"), float("nan"), -1e300], ids=str)
def test_the_pace_of_one_job_fails_no_round(harness: Harness, left: float) -> None:
    harness.add_node(slots=2)
    job_id, _ = harness.running()
    set_left(harness, job_id, left)
    harness.submit(name="other")
    assert harness.place() == 1


def test_a_job_that_would_take_thousands_of_years_starts(harness: Harness) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running(training={"steps": 10**9})
    harness.clock.advance(3600)
    supervisor.train(2)
    supervisor.end("failed", FailureReason.NODE_LOST)
    harness.clock.advance(3600)
    assert harness.place() == 1
    assert harness.attempt(job_id).number == 2

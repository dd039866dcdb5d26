"""Expected durations of new jobs, from former attempts of the same training part; giving way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from server.cluster.nodes.capacity import read_capacity
from server.cluster.placement.demand import LEAVES_WITHIN
from server.cluster.projects.service import create_project
from server.core.database.tables import jobs
from server.jobs.jobs.service import set_priority, stop
from server.jobs.queue.duration import HISTORY
from server.jobs.queue.groups import enter_groups
from server.scheduler.rounds.round import DECIDE_AGAIN_SECONDS, Placer
from server.scheduler.rounds.victims import order_to_leave
from tests.actors import ADA
from tests.server.harness import BRINGS_CODE, Harness, Supervisor
from tests.server.scheduler.rounds.leaving import leaves
from tests.server.statements import statements
from trainyard.protocol.rest.jobs import Progress
from trainyard.protocol.rest.projects import ProjectRequest
from trainyard.protocol.states import JobState
from trainyard.run.failures import FailureReason

PROGRAM = {"program": {"command": ["train.py"], "code": {"folder": "data:mine"}}}
AGAIN = DECIDE_AGAIN_SECONDS


def finished(harness: Harness, seconds: float = 4.0, **sections: Any) -> None:
    """Start a job of four steps, which takes a second, and end it."""
    _, (supervisor,) = harness.launched(**{"training": {"steps": 4}} | sections)
    harness.clock.advance(1.0)
    supervisor.train(0)
    harness.clock.advance(seconds - 1.0)
    supervisor.train(4)
    supervisor.end("succeeded")


def set_left(harness: Harness, job_id: str, seconds: float | None) -> None:
    """Give a running job a known pace, as its metrics do."""
    progress = Progress(step=1, steps=100, seconds_left=seconds)
    with harness.context.database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(progress=progress))


def duration(harness: Harness, **sections: Any) -> tuple[float | None, str | None]:
    """Return the expected duration of a new job, and its hardware."""
    job_id = harness.submit(**sections or {"training": {"steps": 4}})
    enter_groups(harness.context)
    columns = select(jobs.c.lasts_seconds, jobs.c.lasts_on_name).where(jobs.c.id == job_id)
    with harness.context.database.read() as connection:
        row = connection.execute(columns).one()
    stop(harness.context, job_id, actor=ADA, reason="")
    return row.lasts_seconds, row.lasts_on_name


def behind_a_large_one(harness: Harness, *, left: float = 120.0) -> tuple[str, Supervisor, str]:
    """Hold one of four slots for some seconds, and queue a job of all four; return both."""
    long, (supervisor,) = harness.running(name="long")
    set_left(harness, long, left)
    large = harness.submit(name="large", resources={"world_size": 4})
    assert harness.place() == 0
    harness.clock.advance(1)  # later jobs are behind it
    return long, supervisor, large


def test_short_jobs_of_a_known_spec_use_the_slots_that_a_large_one_waits_for(
    harness: Harness,
) -> None:
    harness.add_node("a")
    for _ in range(HISTORY):
        finished(harness)
    behind_a_large_one(harness)
    short = [harness.submit(name=f"short-{n}", training={"steps": 4}) for n in range(3)]
    assert harness.place() == 3
    assert {harness.job(job_id).state for job_id in short} == {JobState.STARTING}


def test_they_wait_where_twice_their_duration_does_not_fit(harness: Harness) -> None:
    harness.add_node("a")
    finished(harness)
    behind_a_large_one(harness, left=7.9)
    harness.submit(name="short", training={"steps": 4})
    assert harness.place() == 0


def test_a_duration_follows_from_the_training_part_and_its_steps(harness: Harness) -> None:
    harness.add_node("a")
    finished(harness)
    same = {
        "name": "other",
        "training": {"steps": 4, "seed": 7},
        "optimizer": {"lr": 0.1},
        "lr_schedule": {"min_lr_ratio": 0.5},
        "retry": {"max_retries": 9},
        "resources": {"priority": "low"},
    }
    assert duration(harness, **same) == (4.0, "test")
    assert duration(harness, training={"steps": 8}) == (7.0, "test")
    others: list[dict[str, Any]] = [
        {"training": {"steps": 4, "global_batch_size": 64}},
        {"activation_checkpoint": {"mode": "full"}},
        {"checkpoint": {"interval_steps": 1}},
        {"resources": {"world_size": 2}},
    ]
    for other in others:
        sections = {"training": {"steps": 4}} | other
        assert duration(harness, **sections) == (None, None), sections


def test_a_duration_is_the_median_and_at_least_half_of_the_longest(harness: Harness) -> None:
    harness.add_node("a")
    for seconds in (4.0, 6.0, 5.0):
        finished(harness, seconds)
    assert duration(harness) == (5.0, "test")
    finished(harness, 30.0)
    assert duration(harness) == (15.0, "test")


def test_the_newest_attempts_count(harness: Harness) -> None:
    harness.add_node("a")
    finished(harness, 400.0)
    for _ in range(HISTORY):
        harness.clock.advance(1)
        finished(harness)
    assert duration(harness) == (4.0, "test")


def test_failed_attempts_and_those_without_a_step_do_not_count(harness: Harness) -> None:
    harness.add_node("a")
    once: dict[str, Any] = {"training": {"steps": 4}, "retry": {"max_retries": 0}}
    _, (hangs,) = harness.running(**once)
    harness.clock.advance(600)
    hangs.end("failed", FailureReason.HANG)
    job_id, (leaves_early,) = harness.launched(**once)
    leaves_early.train(0)
    stop(harness.context, job_id, actor=ADA, reason="")
    leaves_early.end("stopped")
    assert duration(harness) == (None, None)


def test_a_duration_holds_on_its_own_hardware(harness: Harness) -> None:
    harness.add_node("a", device_name="old", slots=1)
    finished(harness)
    assert duration(harness) == (4.0, "old")
    harness.running(name="fills")
    harness.add_node("b", device_name="new")
    behind_a_large_one(harness)
    harness.submit(name="short", training={"steps": 4})
    assert harness.place() == 0


def test_a_name_of_hardware_may_be_long(harness: Harness) -> None:
    name = "x" * 300
    harness.add_node("a", device_name=name)
    finished(harness)
    assert duration(harness) == (4.0, name)


def test_the_durations_of_many_training_parts_take_one_query(harness: Harness) -> None:
    harness.add_node("a")
    parts: list[dict[str, Any]] = [
        {"training": {"steps": 4, "global_batch_size": 8 * n}} for n in (1, 2, 3, 4)
    ]
    for part in parts:
        finished(harness, **part)
    counts = []
    for some in (parts[:1], parts[1:]):
        ids = {harness.submit(**part) for part in some}
        with statements(harness.context) as seen:
            assert enter_groups(harness.context) == ids
        counts.append(len(seen))
        with harness.context.database.read() as connection:
            lasts = connection.scalars(select(jobs.c.lasts_seconds).where(jobs.c.id.in_(ids)))
            assert {*lasts} == {4.0}
    assert counts[0] == counts[1]


def test_a_fork_lasts_for_the_steps_that_it_takes_itself(harness: Harness) -> None:
    harness.add_node("a")
    finished(harness)
    job_id = harness.submit(training={"steps": 4})
    with harness.context.database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(fork_step=2))
    enter_groups(harness.context)
    with harness.context.database.read() as connection:
        assert connection.scalar(select(jobs.c.lasts_seconds).where(jobs.c.id == job_id)) == 2.5


@BRINGS_CODE
def test_a_program_without_steps_lasts_as_those_that_succeeded(harness: Harness) -> None:
    harness.add_node("a")
    job_id, (supervisor,) = harness.launched(**PROGRAM)
    supervisor.train(0)
    harness.clock.advance(50)
    stop(harness.context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    assert duration(harness, **PROGRAM) == (None, None)
    _, (succeeds,) = harness.launched(**PROGRAM)
    succeeds.train(0)
    harness.clock.advance(3)
    succeeds.end("succeeded")
    assert duration(harness, **PROGRAM) == (3.0, "test")


@BRINGS_CODE
@pytest.mark.parametrize("preemptible", [True, False], ids=str)
def test_a_program_that_no_job_may_preempt_is_not_backfilled_on_an_estimate(
    harness: Harness, preemptible: bool
) -> None:
    harness.add_node("a")
    program = {"program": PROGRAM["program"] | {"preemptible": preemptible}}
    _, (succeeds,) = harness.launched(**program)
    succeeds.train(0)
    harness.clock.advance(3)
    succeeds.end("succeeded")
    behind_a_large_one(harness)
    harness.submit(**program)
    assert harness.place() == preemptible


def test_nothing_is_backfilled_on_an_estimate_where_nothing_is_preempted(harness: Harness) -> None:
    harness.add_node("a")
    finished(harness)
    behind_a_large_one(harness)
    harness.submit(name="short", training={"steps": 4})
    settings = harness.context.settings.model_copy(update={"preemption": False})
    placer = Placer(replace(harness.context, settings=settings), harness.dispatcher)
    assert placer.run() == 0
    assert harness.place() == 1


def overtaken(harness: Harness, **sections: Any) -> tuple[Supervisor, str, str]:
    """Return the holder of a slot, the job that waits for all slots, and one that overtook it."""
    harness.add_node("a")
    finished(harness)
    _, long, large = behind_a_large_one(harness)
    short = harness.submit(name="short", training={"steps": 4}, **sections)
    assert harness.place() == 1
    return long, large, short


@pytest.mark.parametrize("retried", [{}, {"on": []}, {"on": ["hang"], "max_retries": 0}], ids=str)
def test_a_wrong_estimate_keeps_the_job_ahead_waiting_for_a_save_alone(
    harness: Harness, retried: dict[str, Any]
) -> None:
    long, large, short = overtaken(harness, retry=retried)
    (supervisor,) = harness.claim_all(short)
    supervisor.train(1)
    harness.clock.advance(AGAIN)
    set_left(harness, short, 600.0)  # slower than expected
    long.end("succeeded")
    assert harness.place() == 0
    leaves(harness, short, supervisor, reason="gives way to large, which was ahead of it")
    assert harness.place() == 1
    assert harness.job(large).state == JobState.STARTING


def test_a_job_that_was_ahead_by_its_fair_share_alone_is_kept_waiting_for_a_save_too(
    harness: Harness,
) -> None:
    harness.add_node("a")
    finished(harness)
    harness.add_node("b", slots=1)
    harness.running(name="other")  # it counts for the project of the short job all the time
    long, (of_long,) = harness.running(name="long")
    set_left(harness, long, 120.0)
    _, (filler,) = harness.running(name="filler", resources={"world_size": 3})
    short = harness.submit(name="short", training={"steps": 4})
    assert harness.place() == 0
    harness.clock.advance(1)
    create_project(harness.context, ProjectRequest(name="team"), actor=ADA)
    harness.submit(name="large", project="team", resources={"world_size": 4, "nodes": 1})
    filler.end("succeeded")
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(short)
    supervisor.train(1)
    harness.clock.advance(AGAIN)
    set_left(harness, short, 600.0)
    of_long.end("succeeded")
    assert harness.place() == 0
    leaves(harness, short, supervisor, reason="gives way to large, which was ahead of it")
    assert harness.place() == 1, "the large one, though the short one waits for longer"


def test_one_that_gives_way_before_its_first_step_is_not_backfilled_again(
    harness: Harness,
) -> None:
    long, _, short = overtaken(harness)
    (supervisor,) = harness.claim_all(short)
    supervisor.train(0)
    harness.clock.advance(300)
    set_left(harness, short, 600.0)
    long.end("succeeded")
    assert harness.place() == 0
    supervisor.end("stopped")
    other, _ = harness.running(name="other", resources={"priority": "high"})
    set_left(harness, other, 10_000.0)
    harness.clock.advance(AGAIN)
    assert harness.place() == 0
    assert harness.job(short).state == JobState.QUEUED


def test_what_came_later_or_is_less_urgent_lets_it_run(harness: Harness) -> None:
    long, large, short = overtaken(harness)
    stop(harness.context, large, actor=ADA, reason="")
    harness.clock.advance(1)
    harness.submit(name="later", resources={"world_size": 4})
    (supervisor,) = harness.claim_all(short)
    supervisor.train(1)
    set_left(harness, short, 600.0)
    long.end("succeeded")
    assert harness.place() == 0
    assert harness.job(short).state == JobState.RUNNING


def test_one_that_was_raised_meanwhile_stays(harness: Harness) -> None:
    _, large, short = overtaken(harness)
    with harness.context.database.read() as connection:
        holdings = read_capacity(connection, harness.context.now()).holdings
    overtook = [each for each in holdings if each.overtook_at is not None]
    assert [each.job_id for each in overtook] == [short]
    set_priority(harness.context, short, 1, actor=ADA)
    assert order_to_leave(harness.context, large, overtook) == 0
    set_priority(harness.context, short, 0, actor=ADA)
    assert order_to_leave(harness.context, large, overtook) == 1


def test_an_end_that_is_always_close_keeps_the_job_ahead_for_a_minute(harness: Harness) -> None:
    long, _, short = overtaken(harness)
    (supervisor,) = harness.claim_all(short)
    supervisor.train(1)
    long.end("succeeded")
    for _ in range(int(LEAVES_WITHIN.total_seconds() / AGAIN) + 1):
        assert harness.job(short).state == JobState.RUNNING
        set_left(harness, short, 5.0)
        assert harness.place() == 0
        harness.clock.advance(AGAIN)
    assert harness.place() == 0
    assert harness.job(short).state == JobState.STOPPING


def test_an_attempt_without_a_pace_is_expected_to_end_as_of_its_placement(
    harness: Harness,
) -> None:
    harness.add_node("a")
    finished(harness)
    job_id = harness.submit(training={"steps": 4})
    placed_at = harness.context.now()
    assert harness.place() == 1

    def expected_end() -> float | None:
        with harness.context.database.read() as connection:
            (holding,) = read_capacity(connection, harness.context.now()).holdings
        ends_at = holding.ends_at
        return None if ends_at is None else (ends_at - placed_at).total_seconds()

    assert expected_end() == 4.0
    (supervisor,) = harness.claim_all(job_id)
    supervisor.train(0)
    harness.clock.advance(3)
    assert expected_end() == 4.0
    set_left(harness, job_id, 5.0)
    assert expected_end() == 8.0
    set_left(harness, job_id, None)
    harness.clock.advance(1)
    assert expected_end() is None


def test_an_end_shows_the_duration_of_those_that_wait(harness: Harness) -> None:
    harness.add_node("a")
    first, (supervisor,) = harness.launched(training={"steps": 4})
    supervisor.train(0)
    set_left(harness, first, 1000.0)
    behind_a_large_one(harness, left=2000.0)
    short = [harness.submit(name=f"short-{n}", training={"steps": 4}) for n in range(2)]
    assert harness.place() == 0
    harness.clock.advance(100)
    supervisor.train(4)
    supervisor.end("succeeded")
    assert harness.place() == 2
    assert {harness.job(job_id).state for job_id in short} == {JobState.STARTING}

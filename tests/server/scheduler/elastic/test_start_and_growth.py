"""Elastic jobs on a clock that the test moves: start and growth."""

from __future__ import annotations

from sqlalchemy import select, update

from server.app.periodic_tasks import TASKS
from server.app.periodic_work import periodic_work
from server.core.context import Context
from server.core.database.tables import events, jobs
from server.core.liveness import beat
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.queries import job_view
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import cancel
from server.scheduler.rounds.leader import Leader
from server.scheduler.rounds.loop import Scheduler
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.scheduler.elastic.scenario import (
    SIX,
    grown,
    run_round,
    set_pace,
    shrunk,
    three_nodes,
)
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import (
    AttemptCause,
    DesiredState,
    JobState,
)


def test_a_job_starts_on_the_slots_that_are_free(harness: Harness) -> None:
    harness.add_node("a", slots=2)
    harness.add_node("b", slots=2)
    job_id = harness.submit(**SIX)
    run_round(harness)
    attempt = harness.attempt(job_id)
    assert (attempt.layout.world_size, attempt.cause) == (4, AttemptCause.SUBMIT)
    assert attempt.micro_batch_size == 3
    view = job_view(harness.context, job_id, scope=SYSTEM_SCOPE)
    assert (view.world_size, view.min_world_size, view.max_world_size) == (4, 4, 6)
    assert view.size_change is not None
    assert view.size_change.reason == "4 slots are free, 6 are not"
    assert harness.kinds(job_id) == ["submitted", "size_changed", "placed"]


def test_a_job_that_fits_whole_starts_whole(harness: Harness) -> None:
    three_nodes(harness)
    job_id = harness.submit(**SIX)
    run_round(harness)
    assert harness.attempt(job_id).layout.world_size == 6
    assert harness.job(job_id).size_change is None


def test_below_its_least_size_a_job_waits(harness: Harness) -> None:
    harness.add_node("a", slots=3)
    job_id = harness.submit(**SIX)
    run_round(harness)
    job = harness.job(job_id)
    assert (job.state, job.world_size) == (JobState.QUEUED, 6)
    assert job.reason == "needs 6 slots, 3 are online"
    harness.add_node("b", slots=2)
    run_round(harness)
    assert harness.attempt(job_id).layout.world_size == 5


def test_a_job_of_a_fixed_size_stays_as_it_is(harness: Harness) -> None:
    harness.add_node("a", slots=4)
    job_id = harness.submit(**SIX | {"resources": {"world_size": 6}})
    run_round(harness)
    assert harness.job(job_id).state == JobState.QUEUED
    assert harness.fit() == 0


def test_an_elastic_job_takes_no_slots_that_a_job_before_it_keeps(harness: Harness) -> None:
    harness.add_node("a", slots=2)
    harness.add_node("b", slots=4)
    harness.launched(resources={"world_size": 2})
    first = harness.submit(resources={"world_size": 6}, training={"global_batch_size": 24})
    harness.clock.advance(1)
    second = harness.submit(**SIX)
    run_round(harness)
    assert harness.job(first).state == JobState.QUEUED
    assert harness.job(second).state == JobState.QUEUED


def test_the_size_of_a_person_counts_again_after_a_shrunk_launch(harness: Harness) -> None:
    """Each change starts from the settings of a person, so the micro-batch size comes back."""
    three_nodes(harness)
    job_id, supervisors = harness.running(**SIX)
    resume(harness.context, job_id, ResumeRequest(world_size=4), actor=ADA)
    for supervisor in supervisors:
        supervisor.end("stopped")
    harness.place()
    assert harness.attempt(job_id).layout.world_size == 4
    for supervisor in harness.claim_all(job_id):
        supervisor.train(2)
    set_pace(harness, job_id, 10**6)
    assert grown(harness) == 1
    pending = harness.job(job_id).pending
    assert pending is not None
    assert pending.layout.world_size == 6


def test_a_job_grows_when_slots_come_free_and_loses_no_step(harness: Harness) -> None:
    job_id, supervisors = shrunk(harness)
    assert grown(harness) == 0
    harness.add_node("c", slots=2)
    assert grown(harness) == 1
    job = harness.job(job_id)
    assert (job.state, job.desired) == (JobState.STOPPING, DesiredState.STOP)
    assert job.size_change.reason == "2 slots came free"
    assert [s.train(12) for s in supervisors] == [DesiredState.STOP] * 2
    for supervisor in supervisors:
        supervisor.end("stopped")
    harness.place()
    attempt = harness.attempt(job_id)
    assert (attempt.cause, attempt.actor) == (AttemptCause.RESIZE, "scheduler")
    assert (attempt.layout.world_size, attempt.micro_batch_size) == (6, 4)
    assert {s.node for s in harness.shares(job_id)} == {"a", "b", "c"}


def test_a_job_grows_for_a_gain_alone_and_not_soon_after_its_start(harness: Harness) -> None:
    job_id, _ = shrunk(harness)
    harness.add_node("c", slots=2)
    harness.clock.advance(599)
    assert harness.grow() == 0
    harness.clock.advance(1)
    for seconds_left in (None, 539.0):  # no pace is known; a third of it is saved
        set_pace(harness, job_id, seconds_left)
        assert harness.grow() == 0
    set_pace(harness, job_id, 540.0)
    assert harness.grow() == 1


def test_a_job_leaves_free_slots_to_jobs_that_wait(harness: Harness) -> None:
    shrunk(harness)
    harness.add_node("c", slots=2)
    waiting = harness.submit(
        training={"global_batch_size": 24}, resources={"world_size": 6, "priority": "low"}
    )
    assert grown(harness) == 0  # it has no group yet
    harness.place()
    assert harness.job(waiting).state == JobState.QUEUED
    assert grown(harness) == 0
    cancel(harness.context, waiting, actor=ADA, reason="")
    assert grown(harness) == 1


def test_growth_uses_no_retry_and_renews_none(harness: Harness) -> None:
    job_id, supervisors = shrunk(harness)
    with harness.context.database.write() as connection:
        connection.execute(update(jobs).values(retries_used=1))
    harness.add_node("c", slots=2)
    assert grown(harness) == 1
    for supervisor in supervisors:
        supervisor.end("stopped")
    assert harness.job(job_id).retries_used == 1


def test_slots_that_go_while_the_job_saves_leave_it_at_what_fits(harness: Harness) -> None:
    job_id, supervisors = shrunk(harness)
    harness.add_node("c", slots=2)
    assert grown(harness) == 1
    harness.launched(resources={"world_size": 2})
    for supervisor in supervisors:
        supervisor.end("stopped")
    run_round(harness)
    assert harness.attempt(job_id).layout.world_size == 4
    assert harness.job(job_id).state == JobState.STARTING


def test_the_scheduler_runs_every_part(harness: Harness, context: Context) -> None:
    harness.add_node("a", slots=2)
    harness.add_node("b", slots=2)
    job_id = harness.submit(**SIX)
    scheduler = Scheduler(
        context, harness.dispatcher, leader=Leader(context.database), work_of=periodic_work
    )
    for _ in range(3):
        assert scheduler.tick()
    for supervisor in harness.claim_all(job_id):
        supervisor.train(2)
    assert harness.job(job_id).world_size == 4
    set_pace(harness, job_id, 10**6)
    harness.add_node("c", slots=2)
    harness.clock.advance(600 + TASKS["grow_jobs"].every_seconds)
    beat(context)
    assert scheduler.tick()
    assert harness.job(job_id).state == JobState.STOPPING
    kinds = select(events.c.kind).where(events.c.kind == "size_changed")
    with context.database.read() as connection:
        assert len(connection.scalars(kinds).all()) == 2

"""Limits of growth of elastic jobs: ended jobs, quotas, and other jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from server.cluster.nodes.capacity import read_offers
from server.cluster.placement.demand import Demand, Offer
from server.cluster.placement.fit import fits
from server.cluster.placement.quotas import Quota
from server.cluster.projects.service import change_project, create_project
from server.core.context import Context
from server.core.database.rows import Job
from server.core.database.tables import jobs, nodes
from server.jobs.jobs.next_attempt import Baseline
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import cancel, stop
from server.scheduler.elastic import grow_jobs
from server.scheduler.elastic.grow_jobs import ElasticGrower, WaitingDemand, room_among
from server.scheduler.elastic.jobs import chosen_by_a_person
from server.scheduler.elastic.sizes import search_best_size
from tests.actors import ADA
from tests.server.cluster.placement.cluster import offer
from tests.server.harness import Harness
from tests.server.periodic import Repeated
from tests.server.scheduler.elastic.scenario import grown, pass_time, shrunk, took_over
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.protocol.rest.projects import ProjectRequest, ProjectSettings
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import DesiredState, JobState


@pytest.fixture
def vision(context: Context) -> str:
    """A project of at most 4 slots."""
    return create_project(context, ProjectRequest(name="vision", max_slots=4), actor=ADA).name


def before_the_order(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act between the read of a growing job and the order to resize it."""

    def late(*args: Any, **named: Any) -> object:
        act()
        return resume(*args, **named)

    monkeypatch.setattr(grow_jobs, "resume", late)


def test_a_job_that_ends_before_its_order_stays_ended(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, supervisors = shrunk(harness)
    harness.add_node("c", slots=2)

    def end() -> None:
        stop(harness.context, job_id, actor=ADA, reason="")
        for supervisor in supervisors:
            supervisor.end("stopped")

    before_the_order(monkeypatch, end)
    assert grown(harness) == 0
    job = harness.job(job_id)
    assert (job.state, job.stored_pending, job.size_change.world_size) == (
        JobState.STOPPED,
        None,
        4,
    )


def test_a_job_that_runs_another_attempt_by_its_order_stays_as_it_is(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, supervisors = shrunk(harness)
    harness.add_node("c", slots=2)

    def restart() -> None:
        resume(harness.context, job_id, ResumeRequest(world_size=4), actor=ADA)
        for supervisor in supervisors:
            supervisor.end("stopped")
        took_over(harness, job_id)

    before_the_order(monkeypatch, restart)
    assert grown(harness) == 0
    assert (harness.job(job_id).state, harness.attempt(job_id).number) == (JobState.RUNNING, 2)


def test_a_job_grows_within_the_quota_of_its_project_alone(
    harness: Harness, context: Context, vision: str
) -> None:
    shrunk(harness, project=vision)
    harness.add_node("c", slots=2)
    assert grown(harness) == 0
    change_project(context, vision, ProjectSettings(slot_hours_per_month=0.1), actor=ADA)
    change_project(context, vision, ProjectSettings(max_slots=6), actor=ADA)
    assert grown(harness) == 0, "its slot-hours of this month are used"
    change_project(context, vision, ProjectSettings(slot_hours_per_month=None), actor=ADA)
    assert grown(harness) == 1


def test_only_sizes_within_the_quota_are_planned(
    harness: Harness, context: Context, vision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[list[int]] = []

    def search(baseline: Any, sizes: Iterable[int], **named: Any) -> object:
        planned.append([*sizes])
        return search_best_size(baseline, planned[-1], **named)

    monkeypatch.setattr(grow_jobs, "search_best_size", search)
    shrunk(harness, project=vision)
    harness.add_node("c", slots=2)
    assert grown(harness) == 0
    change_project(context, vision, ProjectSettings(max_slots=5), actor=ADA)
    grown(harness)
    assert planned == [[], [5]]


def test_a_job_leaves_the_quota_to_jobs_of_its_project_that_wait(
    harness: Harness, context: Context, vision: str
) -> None:
    change_project(context, vision, ProjectSettings(max_slots=6), actor=ADA)
    shrunk(harness, project=vision)
    harness.add_node("c", slots=3)
    waiting = harness.submit(project=vision, resources={"world_size": 3})
    harness.place()
    assert harness.job(waiting).reason == "project vision holds 4 of its 6 slots; needs 3"
    assert grown(harness) == 0
    cancel(context, waiting, actor=ADA, reason="")
    assert grown(harness) == 1


def test_a_job_grows_onto_slots_that_a_quota_keeps_from_others(
    harness: Harness, vision: str
) -> None:
    shrunk(harness)
    harness.add_node("c", slots=6)
    harness.launched(project=vision, resources={"world_size": 3})
    waiting = harness.submit(project=vision, resources={"world_size": 2})
    harness.place()
    assert harness.job(waiting).reason == "project vision holds 3 of its 4 slots; needs 2"
    assert grown(harness) == 1


def test_what_waits_for_ever_closes_no_project() -> None:
    quotas = {"vision": Quota(held=4, max_slots=6)}
    larger_than_the_quota, larger_than_the_cluster = Demand(7), Demand(5)
    for demand in (larger_than_the_quota, larger_than_the_cluster):
        room = room_among([WaitingDemand(demand, "vision")], [offer("a", 4, 2)], quotas)
        assert not room.closed
        assert [len(each.free) for each in room.offers] == [2]
    within = room_among([WaitingDemand(Demand(2), "vision")], [offer("a", 4, 2)], quotas)
    assert (set(within.closed), [len(each.free) for each in within.offers]) == (
        {("vision", None)},
        [0],
    )


def test_one_job_grows_onto_free_slots_and_the_next_waits_for_it(harness: Harness) -> None:
    first, _ = shrunk(harness)
    second, _ = shrunk(harness, "cd")
    harness.add_node("e", slots=2)
    assert grown(harness) == 1
    states = {harness.job(each).state for each in (first, second)}
    assert states == {JobState.STOPPING, JobState.RUNNING}
    pass_time(harness, 10)
    assert harness.grow() == 0, "the first job has not taken the slots yet"


def test_only_the_nodes_of_a_job_are_copied_for_its_growth(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copied node lacks its cached sort keys; copies of 1,000 nodes take 0.1 s per job."""
    seen: list[Offer] = []

    def fits_on(demand: Demand, offers: Sequence[Offer]) -> bool:
        seen.extend(offers)
        return fits(demand, offers)

    shrunk(harness)
    harness.add_node("c", slots=2)
    monkeypatch.setattr(grow_jobs, "fits", fits_on)
    assert grown(harness) == 1
    with context.database.read() as connection:
        read = {id(each) for each in read_offers(connection)}
    assert {each.node for each in seen if id(each) not in read} == {"a", "b"}


def test_an_error_of_one_job_keeps_no_other_from_growing(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken, _ = shrunk(harness)
    other, _ = shrunk(harness, "cd")
    harness.add_node("e", slots=2)

    def fails(job: Job) -> Baseline:
        if job.id == broken:
            raise ValueError("of one job alone")
        return chosen_by_a_person(job)

    monkeypatch.setattr(grow_jobs, "chosen_by_a_person", fails)
    assert grown(harness) == 1
    states = [harness.job(each).state for each in (broken, other)]
    assert states == [JobState.RUNNING, JobState.STOPPING]
    assert f"the growth of job {broken} is left out" in caplog.text


def test_no_job_takes_what_a_job_that_leaves_its_node_needs(harness: Harness) -> None:
    shrunk(harness)
    harness.add_node("c", slots=2)
    moving, (supervisor,) = harness.running(resources={"world_size": 2})
    harness.add_node("d", slots=2)
    with harness.context.database.write() as connection:
        connection.execute(update(nodes).where(nodes.c.name == "c").values(notice="spot"))
    pass_time(harness, 600)
    assert harness.empty() == 1
    assert harness.grow() == 0
    assert supervisor.train(2) == DesiredState.STOP
    supervisor.end("stopped")
    assert harness.job(moving).state == JobState.QUEUED
    harness.place()
    assert {share.node for share in harness.shares(moving)} == {"d"}


def test_a_pause_keeps_the_nodes_of_its_job_and_no_others(harness: Harness) -> None:
    shrunk(harness)
    paused = harness.submit(resources={"world_size": 3})
    with harness.context.database.write() as connection:
        later = harness.context.now() + timedelta(hours=1)
        connection.execute(update(jobs).where(jobs.c.id == paused).values(not_before=later))
    harness.add_node("c", slots=2)
    pass_time(harness, 600)
    with harness.context.database.write() as connection:
        row = update(jobs).where(jobs.c.id == paused)
        connection.execute(row.values(queued_at=harness.context.now()))
    assert harness.grow() == 0, "three slots on all of these nodes are one job's"
    with harness.context.database.write() as connection:
        pending = harness.job(paused).pending
        assert isinstance(pending, PendingLaunch)
        row = update(jobs).where(jobs.c.id == paused)
        large = pending.layout.model_copy(update={"dp_shard": 9})
        connection.execute(row.values(pending=pending.model_copy(update={"layout": large})))
    assert harness.grow() == 1, "no nodes could hold nine slots"


def test_a_look_goes_on_in_the_next_tick_when_its_time_is_up(harness: Harness) -> None:
    job_id, _ = shrunk(harness, training={"global_batch_size": 24, "steps": 1000})
    harness.add_node("c", slots=2)
    pass_time(harness, 600)
    look = Repeated(harness.clock, ElasticGrower(harness.context).run, budget=0.0)
    assert look.run() == 0
    found = [look.run() for _ in range(2)]
    assert found == [1, 0]
    assert harness.job(job_id).state == JobState.STOPPING


def test_slots_that_go_between_two_ticks_are_not_grown_onto(harness: Harness) -> None:
    job_id, _ = shrunk(harness)
    harness.add_node("c", slots=2)
    pass_time(harness, 600)
    look = Repeated(harness.clock, ElasticGrower(harness.context).run, budget=0.0)
    assert look.run() == 0
    harness.launched(resources={"world_size": 2})
    assert [look.run() for _ in range(4)] == [0] * 4
    assert harness.job(job_id).state == JobState.RUNNING


def test_growth_uses_the_sums_of_slot_hours_that_a_round_has_read(
    harness: Harness, context: Context, vision: str
) -> None:
    change_project(context, vision, ProjectSettings(slot_hours_per_month=1e6), actor=ADA)
    change_project(context, vision, ProjectSettings(max_slots=6), actor=ADA)
    shrunk(harness, project=vision)
    harness.add_node("c", slots=2)
    pass_time(harness, 600)
    used = {vision: 1e6}
    grower = ElasticGrower(context, lambda connection, now, names: used)
    repeated = Repeated(harness.clock, grower.run)
    assert repeated.run() == 0
    used = {vision: 0.0}
    assert repeated.run() == 1

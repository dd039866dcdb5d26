"""Waiting elastic jobs: which of them get another size, and how soon."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection

from server.cluster.placement.decide import Turns
from server.cluster.placement.demand import QueuedJob
from server.core.database.rows import Job
from server.jobs.jobs.next_attempt import Baseline
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import cancel
from server.jobs.queue import heads
from server.scheduler.elastic import fit_sizes
from server.scheduler.elastic.fit_sizes import SizeFitter
from server.scheduler.elastic.jobs import can_continue, chosen_by_a_person
from server.scheduler.rounds import reconcile
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.periodic import Repeated
from tests.server.scheduler.elastic.scenario import (
    SIX,
    lose,
    pass_time,
    run_round,
    share_of,
    three_nodes,
)
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import JobState

EVEN = {"global_batch_size": 24, "micro_batch_size": 1}
WIDE = SIX | {"resources": {"world_size": 6, "min_world_size": 2}}


def place_and_fit(harness: Harness) -> None:
    """Run both parts once, like the leader: each set of demands in turn gets both."""
    harness.place()
    harness.fit()


def test_jobs_that_fit_nowhere_hold_up_none_behind_them(harness: Harness) -> None:
    harness.add_node("a", slots=3)
    large = [harness.submit(name=f"large-{number}", **SIX) for number in range(9)]
    harness.clock.advance(1)
    small = harness.submit(**WIDE)
    run_round(harness)
    assert harness.job(small).state == JobState.STARTING
    assert {harness.job(each).state for each in large} == {JobState.QUEUED}


def test_an_error_of_one_job_keeps_no_other_from_its_size(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness.add_node("a", slots=3)
    broken = harness.submit(name="broken", **WIDE)
    harness.clock.advance(1)
    other = harness.submit(**WIDE)
    harness.place()

    def fails(job: Job) -> Baseline:
        if job.id == broken:
            raise ValueError("of one job alone")
        return chosen_by_a_person(job)

    monkeypatch.setattr(fit_sizes, "chosen_by_a_person", fails)
    assert harness.fit() == 1
    assert (harness.job(broken).world_size, harness.job(other).world_size) == (6, 3)
    assert f"the size of job {broken} is left out" in caplog.text


def test_each_size_is_tried_on_what_the_jobs_ahead_leave_and_these_are_placed_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []

    class Counted(Turns):
        def _place(self, job: QueuedJob) -> bool:
            taken.append(job.id)
            return super()._place(job)

    harness.add_node("a", slots=3)
    ahead = [
        harness.submit(name=f"n{size}", training=EVEN, resources={"world_size": size})
        for size in (4, 6, 8)
    ]
    harness.clock.advance(1)
    job_id = harness.submit(**WIDE)
    harness.place()
    monkeypatch.setattr(fit_sizes, "Turns", Counted)
    assert harness.fit() == 1
    assert sorted(taken) == sorted(ahead)
    assert harness.job(job_id).world_size == 3


def test_searches_rest_once_rounds_of_many_demands_do(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[object] = []

    class Counted(Turns):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            searches.append(self)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(heads, "DEMANDS_AT_ONCE", 4)
    monkeypatch.setattr(heads, "FIRST_DEMANDS", 2)
    monkeypatch.setattr(fit_sizes, "Turns", Counted)
    harness.add_node("a", slots=3)
    for number in range(7):
        elsewhere = {"node_selector": {"zone": f"z{number}"}}
        harness.submit(**SIX | {"resources": WIDE["resources"] | elsewhere})
    for _ in range(20):
        place_and_fit(harness)
    assert 2 <= len(searches) <= 10
    job_id = harness.submit(**WIDE)
    for _ in range(10):
        place_and_fit(harness)
    assert (harness.job(job_id).state, harness.job(job_id).world_size) == (JobState.STARTING, 3)


def a_step_a_round(harness: Harness) -> Repeated:
    """Return the search for sizes, of which a round runs one step."""
    fitter = SizeFitter(harness.context, harness.placer.queue)
    return Repeated(harness.clock, fitter.run, budget=0.0)


def test_a_search_goes_on_in_the_next_tick_when_its_time_is_up(harness: Harness) -> None:
    harness.add_node("a", slots=4)
    harness.submit(name="ahead", training=EVEN, resources={"world_size": 6})
    harness.clock.advance(1)
    job_id = harness.submit(**WIDE)
    harness.place()
    fitter = a_step_a_round(harness)
    found = []
    while 1 not in found:
        found.append(fitter.run())
        assert len(found) < 20
    assert len(found) > 2
    assert harness.job(job_id).world_size == 4


def test_a_job_that_leaves_between_two_ticks_is_left_out(harness: Harness) -> None:
    harness.add_node("a", slots=4)
    harness.submit(name="ahead", training=EVEN, resources={"world_size": 6})
    harness.clock.advance(1)
    job_id = harness.submit(**WIDE)
    harness.place()
    fitter = a_step_a_round(harness)
    assert fitter.run() == 0
    cancel(harness.context, job_id, actor=ADA, reason="")
    assert [fitter.run() for _ in range(5)] == [0] * 5
    assert harness.job(job_id).state == JobState.CANCELLED


def test_the_order_of_the_queue_is_looked_at_again_after_a_while(harness: Harness) -> None:
    harness.add_node("a", slots=6)
    harness.launched(resources={"world_size": 2})
    first = harness.submit(resources={"world_size": 6}, training={"global_batch_size": 24})
    harness.clock.advance(1)
    second = harness.submit(**SIX)
    run_round(harness)
    assert harness.job(second).state == JobState.QUEUED
    assert harness.fit() == 0
    cancel(harness.context, first, actor=ADA, reason="")
    run_round(harness)
    assert harness.job(second).world_size == 4


def test_a_job_that_fits_nowhere_without_its_silent_node_is_looked_at_every_five_seconds(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_nodes(harness)
    section = {"resources": {"world_size": 6, "min_world_size": 5}}
    _, supervisors = harness.running(**SIX | section)
    looks: list[str] = []

    def counted(connection: Connection, job_id: str, attempt_id: str, *rest: Any) -> bool:
        looks.append(attempt_id)
        return can_continue(connection, job_id, attempt_id, *rest)

    monkeypatch.setattr(reconcile, "can_continue", counted)
    lose(harness, supervisors[:2])
    for _ in range(8):
        harness.reconciler.run()
    assert len(looks) == 1
    pass_time(harness, 5, silent=["c"])
    harness.reconciler.run()
    assert len(looks) == 2
    harness.add_node("d", slots=2)
    pass_time(harness, 5, silent=["c"])
    harness.reconciler.run()
    assert share_of(harness, looks[-1], "c").lost_at is not None


def test_a_launch_of_a_person_that_shrank_grows_back_in_the_queue(harness: Harness) -> None:
    harness.add_node("a", slots=4)
    section = {"resources": {"world_size": 4, "min_world_size": 2, "max_world_size": 8}}
    job_id, (supervisor,) = harness.running(**SIX | section)
    ahead = {"resources": {"world_size": 4, "priority": "high"}}
    resume(harness.context, job_id, ResumeRequest(world_size=8), actor=ADA)
    harness.commit_checkpoint(job_id, 2)
    supervisor.end("stopped")
    harness.place()
    assert harness.fit() == 1
    other = harness.submit(**ahead)
    harness.place()
    assert harness.job(other).state == JobState.STARTING
    assert (harness.job(job_id).state, harness.job(job_id).world_size) == (JobState.QUEUED, 4)
    harness.add_node("b", slots=8)
    harness.fit()
    run_round(harness)
    assert harness.attempt(job_id).layout.world_size == 8

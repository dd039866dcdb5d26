"""Preemption in the scheduler's rounds: a victim saves, waits, and continues later."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from server.app.periodic_tasks import TASKS
from server.app.periodic_work import periodic_work
from server.cluster.nodes.capacity import read_capacity
from server.cluster.placement.demand import OVERDUE_AFTER
from server.core.context import Context
from server.core.database.tables import attempt_nodes, jobs
from server.jobs.jobs.service import cancel, delete, set_priority
from server.scheduler.elastic import fit_sizes
from server.scheduler.rounds.leader import Leader
from server.scheduler.rounds.loop import Scheduler
from server.scheduler.rounds.round import DECIDE_AGAIN_SECONDS, Placer
from server.scheduler.rounds.victims import order_to_leave
from tests.actors import ADA
from tests.server.harness import Harness, Supervisor
from tests.server.scheduler.rounds.leaving import leaves
from trainyard.protocol.rest.jobs import Progress
from trainyard.protocol.states import JobState


def low_and_high(harness: Harness) -> tuple[str, Supervisor, str]:
    """Return a job of all slots that trained long enough, and one that waits for the slots."""
    harness.add_node("a")
    low, (supervisor,) = harness.running(
        name="low", resources={"world_size": 4, "priority": "low"}, retry={"max_retries": 0}
    )
    harness.clock.advance(harness.context.settings.preempt_after_seconds)
    high = harness.submit(name="llama-7", resources={"world_size": 2, "priority": "high"})
    return low, supervisor, high


def test_a_job_of_lower_priority_saves_leaves_and_continues_later(harness: Harness) -> None:
    low, supervisor, high = low_and_high(harness)
    assert harness.place() == 0
    reason = "preempted by llama-7 of priority high"
    saved = leaves(harness, low, supervisor, reason=reason)
    assert harness.place() == 1
    (above,) = harness.claim_all(high)
    above.train()
    assert harness.job(low).reason == "needs 4 slots, 2 free, 2 held by llama-7"
    above.end("succeeded")
    assert harness.place() == 1
    (again,) = harness.claim_all(low)
    assert again.reply.attempt.resume is not None
    assert again.reply.attempt.resume.checkpoint_id == saved


def test_an_attempt_is_left_alone_until_it_has_run_for_a_while(harness: Harness) -> None:
    harness.add_node("a", slots=1)
    low, _ = harness.running(name="low")
    harness.submit(resources={"priority": 1})
    minimum = harness.context.settings.preempt_after_seconds
    harness.clock.advance(minimum - 1)
    assert harness.place() == 0
    assert harness.job(low).state == JobState.RUNNING
    harness.clock.advance(DECIDE_AGAIN_SECONDS)
    assert harness.place() == 0
    assert harness.job(low).state == JobState.STOPPING


def test_no_further_attempt_leaves_while_the_first_one_does(harness: Harness) -> None:
    harness.add_node("a", slots=2)
    first, _ = harness.running(name="first")
    second, _ = harness.running(name="second")
    harness.clock.advance(harness.context.settings.preempt_after_seconds)
    harness.submit(name="high", resources={"priority": "high"})
    for _ in range(3):
        harness.place()
        harness.clock.advance(DECIDE_AGAIN_SECONDS)
    states = {harness.job(first).state, harness.job(second).state}
    assert states == {JobState.STOPPING, JobState.RUNNING}


def test_another_attempt_leaves_for_one_that_does_not(harness: Harness, context: Context) -> None:
    first, second = two_of_which_the_second_leaves(harness)
    harness.clock.advance(OVERDUE_AFTER.total_seconds() - DECIDE_AGAIN_SECONDS - 1)
    harness.place()
    assert harness.job(first).state == JobState.RUNNING
    harness.clock.advance(DECIDE_AGAIN_SECONDS + 1)
    harness.place()
    assert harness.job(first).state == harness.job(second).state == JobState.STOPPING


def test_another_attempt_leaves_for_one_that_is_silent(harness: Harness, context: Context) -> None:
    first, second = two_of_which_the_second_leaves(harness)
    harness.clock.advance(DECIDE_AGAIN_SECONDS)
    set_share(harness, second, unreachable_since=context.now())
    harness.place()
    assert harness.job(first).state == JobState.STOPPING


def two_of_which_the_second_leaves(harness: Harness) -> tuple[str, str]:
    harness.add_node("a", slots=2)
    first, _ = harness.running(name="first")
    harness.clock.advance(1)
    second, _ = harness.running(name="second")
    harness.clock.advance(harness.context.settings.preempt_after_seconds)
    harness.submit(name="high", resources={"priority": "high"})
    harness.place()
    assert harness.job(second).state == JobState.STOPPING
    return first, second


def test_nothing_leaves_where_preemption_is_off(harness: Harness, context: Context) -> None:
    low, _, _ = low_and_high(harness)
    settings = context.settings.model_copy(update={"preemption": False})
    placer = Placer(replace(context, settings=settings), harness.dispatcher)
    assert (placer.run(), placer.preempt()) == (0, 0)
    assert harness.job(low).state == JobState.RUNNING


@pytest.mark.parametrize("change", ["gone", "raised"])
def test_an_order_is_not_given_when_its_cause_is_gone(
    harness: Harness, context: Context, change: str
) -> None:
    low, _, high = low_and_high(harness)
    with context.database.read() as connection:
        victims = read_capacity(connection, context.now()).holdings
    if change == "gone":
        cancel(context, high, actor=ADA, reason="")
    else:
        set_priority(context, low, 50, actor=ADA)
    assert order_to_leave(context, high, victims) == 0
    assert harness.job(low).state == JobState.RUNNING


def set_share(harness: Harness, job_id: str, **values: object) -> None:
    of_job = attempt_nodes.c.attempt_id == harness.attempt(job_id).id
    with harness.context.database.write() as connection:
        connection.execute(update(attempt_nodes).where(of_job).values(**values))


@pytest.mark.parametrize("column", ["lost_at", "unreachable_since"])
def test_a_silent_share_is_no_victim(harness: Harness, context: Context, column: str) -> None:
    """The silent attempt started last, and would be the first to leave."""
    harness.add_node("a", slots=2)
    stays, _ = harness.running(name="stays")
    harness.clock.advance(1)
    silent, _ = harness.running(name="silent")
    set_share(harness, silent, **{column: context.now()})
    harness.clock.advance(context.settings.preempt_after_seconds)
    harness.submit(name="high", resources={"priority": "high"})
    harness.place()
    assert harness.job(stays).state == JobState.STOPPING


@pytest.mark.parametrize("raised", [0, 1])
def test_several_attempts_leave_together_or_none_does(
    harness: Harness, context: Context, raised: int
) -> None:
    harness.add_node("a", slots=2)
    both = [harness.running()[0] for _ in range(2)]
    harness.clock.advance(context.settings.preempt_after_seconds)
    harness.submit(resources={"world_size": 2, "priority": "high"})
    harness.placer.run()
    set_priority(context, both[raised], 50, actor=ADA)
    assert harness.placer.preempt() == 0
    assert {harness.job(job_id).state for job_id in both} == {JobState.RUNNING}


def test_a_deleted_victim_keeps_no_other_job_from_its_slots(
    harness: Harness, context: Context
) -> None:
    selected = [{"world_size": 1, "exclude_nodes": [other]} for other in "ba"]
    for node in "ab":
        harness.add_node(node, slots=1)
    gone, stays = (harness.running(resources=each) for each in selected)
    harness.clock.advance(context.settings.preempt_after_seconds)
    for each in selected:
        harness.submit(resources={**each, "priority": "high"})
    harness.placer.run()
    cancel(context, gone[0], actor=ADA, reason="")
    gone[1][0].end("cancelled")
    delete(context, gone[0], actor=ADA, checkpoints="keep")
    assert harness.placer.preempt() == 1
    assert harness.job(stays[0]).state == JobState.STOPPING


@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["a step a tick", "all in a tick"])
@pytest.mark.parametrize("held", [2, 4])
def test_an_elastic_job_preempts_only_where_no_size_fits(
    harness: Harness,
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
    held: int,
    seconds: float,
) -> None:
    hurried = replace(TASKS["fit_sizes"], budget_seconds=seconds)
    monkeypatch.setitem(TASKS, "fit_sizes", hurried)
    harness.add_node("a", slots=4)
    low, (supervisor,) = harness.running(resources={"world_size": held})
    harness.clock.advance(context.settings.preempt_after_seconds)
    supervisor.train(2)
    high = harness.submit(
        training={"global_batch_size": 8, "micro_batch_size": 2},
        resources={"world_size": 4, "min_world_size": 2, "priority": "high"},
    )
    scheduler = Scheduler(
        context, harness.dispatcher, leader=Leader(context.database), work_of=periodic_work
    )
    waiting = (JobState.RUNNING, JobState.QUEUED)
    states = waiting
    for _ in range(100):
        assert scheduler.tick()
        states = harness.job(low).state, harness.job(high).state
        if states != waiting:
            break
    expected = {2: (JobState.RUNNING, JobState.STARTING), 4: (JobState.STOPPING, JobState.QUEUED)}
    assert states == expected[held]


def test_no_attempt_leaves_after_a_failed_search_for_sizes(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.add_node("a", slots=4)
    low, _ = harness.running(resources={"world_size": 4})
    harness.clock.advance(context.settings.preempt_after_seconds)
    harness.submit(
        training={"global_batch_size": 8, "micro_batch_size": 2},
        resources={"world_size": 4, "min_world_size": 1, "priority": "high"},
    )
    scheduler = Scheduler(
        context, harness.dispatcher, leader=Leader(context.database), work_of=periodic_work
    )

    def fails(_: object) -> None:
        raise ValueError("no offer can be read")

    with monkeypatch.context() as patch:
        patch.setattr(fit_sizes, "read_offers", fails)
        for _ in range(3):
            with pytest.raises(ExceptionGroup):
                scheduler.tick()
            harness.clock.advance(DECIDE_AGAIN_SECONDS)
    assert harness.job(low).state == JobState.RUNNING
    for _ in range(3):
        scheduler.tick()
        harness.clock.advance(DECIDE_AGAIN_SECONDS)
    assert harness.job(low).state == JobState.STOPPING


def test_an_attempt_that_is_about_to_end_for_ever_is_preempted_alone(harness: Harness) -> None:
    for node in "ab":
        harness.add_node(node, slots=1)
    low, _ = harness.running(name="low", resources={"priority": "low"})
    other, _ = harness.running(name="other")
    almost = Progress(step=1, steps=100, seconds_left=1.0)  # reported by its ranks, true or false
    with harness.context.database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == low).values(progress=almost))
    harness.clock.advance(3600)
    harness.submit(name="high", resources={"priority": "high"})
    for _ in range(30):
        harness.place()
        assert harness.job(low).state == JobState.RUNNING
        harness.clock.advance(10)
    for _ in range(30):  # its last save takes long
        harness.place()
        assert harness.job(low).state == JobState.STOPPING
        assert harness.job(other).state == JobState.RUNNING
        harness.clock.advance(10)
    harness.place()
    assert harness.job(other).state == JobState.STOPPING

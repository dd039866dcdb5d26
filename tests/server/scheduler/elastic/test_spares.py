"""Spare nodes on a clock that the test moves: they replace lost nodes and are reserved again."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select

from server.cluster.nodes.capacity import POLLS, read_capacity, read_offers
from server.cluster.nodes.queries import list_nodes
from server.cluster.nodes.slots import CLOCK
from server.cluster.projects.queries import held_slots
from server.cluster.projects.service import create_project
from server.cluster.projects.usage import read_usage
from server.core.context import Context
from server.core.database.slot_tables import holdings
from server.core.errors import NotFoundError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.node_heartbeat import node_heartbeat
from server.jobs.jobs.service import cancel
from server.telemetry.goodput.holdings import read_holdings, spent_by_day
from server.telemetry.goodput.queries import milliseconds
from tests.actors import ADA
from tests.server.cluster.nodes.gpu_node import FOREIGN
from tests.server.harness import WORKER, Harness, Supervisor
from tests.server.jobs.jobs.test_environment import EXPLOIT, store_env
from tests.server.scheduler.elastic.scenario import end_all, free_on, lose, pass_time, run_round
from tests.server.scheduler.elastic.spare_nodes import (
    FOUR,
    change,
    go_offline,
    ranks_and_spares,
    with_spare,
)
from trainyard.protocol.goodput import TimeCategory
from trainyard.protocol.node_samples import DATA_DIR_FULL, DRIVER_SILENT
from trainyard.protocol.rest.projects import ProjectRequest
from trainyard.protocol.states import JobState
from trainyard.protocol.worker_messages import PROTOCOL, NodeHeartbeat
from trainyard.run.failures import FailureReason


def test_a_job_starts_with_a_spare_node_that_gets_no_launch(harness: Harness) -> None:
    job_id, _ = with_spare(harness)
    assert ranks_and_spares(harness, job_id) == (["a", "b"], ["c"])
    assert {message.node for message in harness.dispatcher.sent} == {"a", "b"}
    attempt_id = harness.attempt(job_id).id
    with pytest.raises(NotFoundError, match="node 'c' has no share"):
        Supervisor(harness, attempt_id, node="c")
    other = harness.submit()
    assert harness.place() == 0
    assert harness.job(other).reason == "needs 1 slot, 0 free, 6 held by tiny"


def test_a_job_waits_for_its_spare_node(harness: Harness) -> None:
    harness.add_node("a", slots=2)
    harness.add_node("b", slots=2)
    job_id = harness.submit(**FOUR)
    harness.place()
    reason = "needs 4 slots on 2 nodes and 1 spare node, 4 are online (2 + 2)"
    assert harness.job(job_id).reason == reason
    harness.add_node("c", slots=1)
    harness.place()
    assert harness.job(job_id).state == JobState.QUEUED, "a spare node has the slots of any other"
    harness.add_node("d", slots=2)
    harness.place()
    assert ranks_and_spares(harness, job_id) == (["a", "b"], ["d"])


def test_the_spare_takes_the_place_of_a_lost_node_before_the_queue(harness: Harness) -> None:
    job_id, (first, _) = with_spare(harness)
    ahead = harness.submit(resources={"world_size": 2, "priority": "high"})
    lose(harness, [first])
    end_all([first])
    harness.place()
    assert harness.job(ahead).state == JobState.QUEUED, "all slots are kept for the lost node's job"
    assert harness.keep_spares() == 1
    assert ranks_and_spares(harness, job_id) == (["a", "c"], [])
    attempt, job = harness.attempt(job_id), harness.job(job_id)
    assert (attempt.layout.world_size, job.retries_used, job.size_change) == (4, 0, None)
    assert free_on(harness, "b") == 0, "the lost share holds its slots"
    assert {message.node for message in harness.dispatcher.sent[-2:]} == {"a", "c"}


def test_a_node_that_proves_its_end_is_replaced_without_a_pause(harness: Harness) -> None:
    job_id, supervisors = with_spare(harness)
    supervisors[1].end("failed", FailureReason.NODE_LOST)
    end_all(supervisors[:1])
    assert harness.job(job_id).not_before is None
    assert harness.keep_spares() == 1
    assert ranks_and_spares(harness, job_id) == (["a", "c"], [])


def test_a_job_that_waits_for_a_pause_keeps_nothing(harness: Harness) -> None:
    for name in "abc":
        harness.add_node(name, slots=2)
    job_id, supervisors = harness.launched(**FOUR, retry={"backoff_seconds": 20})
    supervisors[1].end("failed", FailureReason.NODE_LOST)
    end_all(supervisors[:1])
    assert harness.job(job_id).not_before == harness.clock.now() + timedelta(seconds=20)
    assert ranks_and_spares(harness, job_id)[1] == []
    assert [free_on(harness, name) for name in "abc"] == [2, 2, 2]
    go_offline(harness, "b")
    harness.clock.advance(19)
    assert harness.keep_spares() + harness.place() == 0
    harness.clock.advance(1)
    assert harness.keep_spares() == 0
    assert harness.place() == 1
    assert ranks_and_spares(harness, job_id) == (["a", "c"], [])


def test_a_lost_node_has_ranks_again_where_no_spare_node_is_left(harness: Harness) -> None:
    job_id, supervisors = with_spare(harness)
    supervisors[1].end("failed", FailureReason.NODE_LOST)
    end_all(supervisors[:1])
    go_offline(harness, "c")
    assert harness.keep_spares() == 1
    assert ranks_and_spares(harness, job_id) == (["a", "b"], [])


@pytest.mark.parametrize(
    ("reason", "placed"), [(FOREIGN, 1), (DRIVER_SILENT, 0), (DATA_DIR_FULL, 0), (CLOCK, 0)]
)
def test_a_slot_that_a_job_keeps_is_withheld_unless_its_ranks_were_seen_there(
    harness: Harness, reason: str, placed: int
) -> None:
    job_id, (first, _) = with_spare(harness)
    lose(harness, [first])
    end_all([first])
    change(harness, "a", withheld={"0": reason})
    assert harness.keep_spares() == placed
    assert (harness.job(job_id).state == JobState.STARTING) == (placed == 1)


@pytest.mark.parametrize("inbox", ["broker", POLLS])
def test_spares_that_are_left_over_stay_reserved(harness: Harness, inbox: str) -> None:
    two = {"resources": FOUR["resources"] | {"spare_nodes": 2}}
    job_id, (first, _) = with_spare(harness, "abcd", **two)
    for name in "abcd":
        change(harness, name, inbox=inbox)
    assert ranks_and_spares(harness, job_id)[1] == ["c", "d"]
    lose(harness, [first])
    end_all([first])
    assert harness.keep_spares() == 1
    assert ranks_and_spares(harness, job_id) == (["a", "c"], ["d"])


def test_any_other_end_releases_the_spare(harness: Harness) -> None:
    job_id, supervisors = with_spare(harness)
    supervisors[0].end("failed", FailureReason.TRAINER_ERROR)
    end_all(supervisors[1:])
    assert harness.job(job_id).state == JobState.QUEUED
    assert ranks_and_spares(harness, job_id)[1] == []
    assert free_on(harness, "c") == 2


def test_a_cancel_while_the_lost_node_is_replaced_frees_all(harness: Harness) -> None:
    job_id, (first, _) = with_spare(harness)
    lose(harness, [first])
    end_all([first])
    cancel(harness.context, job_id, actor=ADA, reason="")
    assert ranks_and_spares(harness, job_id)[1] == []
    harness.submit(resources={"world_size": 4})
    assert harness.place() == 1


def test_a_second_loss_leaves_the_job_to_the_queue(harness: Harness) -> None:
    job_id, (first, _) = with_spare(harness)
    lose(harness, [first])
    go_offline(harness, "c")
    end_all([first])
    assert harness.keep_spares() == 0
    assert ranks_and_spares(harness, job_id)[1] == []
    assert harness.place() == 0
    assert harness.job(job_id).reason == "needs 4 slots on 2 nodes, 2 are online"
    harness.add_node("d", slots=2)
    assert harness.place() == 1, "a retry waits for no spare node"
    assert ranks_and_spares(harness, job_id) == (["a", "d"], [])


def test_a_spare_slot_that_another_program_holds_takes_no_place(harness: Harness) -> None:
    job_id, (first, _) = with_spare(harness)
    lose(harness, [first])
    change(harness, "c", withheld={"0": "held by another program"})
    end_all([first])
    assert harness.keep_spares() == 0
    assert harness.job(job_id).state == JobState.QUEUED


def searching(harness: Harness) -> str:
    """Return a job of project vision that lost its first node and waits for the recovery."""
    quota = ProjectRequest(name="vision", max_slots=6)
    create_project(harness.context, quota, actor=ADA)
    job_id, (_, second) = with_spare(harness, project="vision")
    harness.add_node("d", slots=2)
    lose(harness, [second])
    end_all([second])
    assert harness.keep_spares() == 0
    return job_id


def test_the_slots_that_a_job_keeps_while_commits_are_searched_are_its_own(
    harness: Harness,
) -> None:
    job_id = searching(harness)
    high = {"priority": "high", "world_size": 2}
    rival = harness.submit(project="vision", resources=high)
    other = harness.submit(resources=high | {"nodes": 1, "exclude_nodes": ["d"]})
    assert harness.place() == 0
    held = "project vision holds 6 of its 6 slots; needs 2"
    assert harness.job(rival).reason == held
    assert harness.job(other).state == JobState.QUEUED
    pass_time(harness, 121, silent={"a"})
    assert harness.keep_spares() == 1
    assert ranks_and_spares(harness, job_id) == (["b", "c"], [])


def test_a_lost_node_that_proves_its_end_leaves_its_place_to_the_spare(
    harness: Harness, context: Context
) -> None:
    job_id = searching(harness)
    first = harness.attempt(job_id)
    gone = NodeHeartbeat(protocol=PROTOCOL, node="a", worker=WORKER, gone=(first.id,))
    node_heartbeat(context, gone)
    with context.database.read() as connection:
        (kept,) = read_capacity(connection, context.now()).holdings
    assert kept.shares.keys() == {"a", "b", "c"}
    assert (kept.ends_at, kept.first_step_at) == (None, None), "no end is near, and none preempts"
    pass_time(harness, 121)
    assert harness.keep_spares() == 1
    assert ranks_and_spares(harness, job_id) == (["b", "c"], [])


def test_a_job_that_cannot_be_placed_leaves_its_slots_to_others(harness: Harness) -> None:
    job_id, (first, _) = with_spare(harness)
    lose(harness, [first])
    end_all([first])
    harness.spoil_spec(job_id)
    assert harness.keep_spares() == 0
    assert ranks_and_spares(harness, job_id)[1] == []
    harness.place()
    assert "cannot be read" in harness.job(job_id).reason
    harness.submit(resources={"world_size": 4})
    assert harness.place() == 1


def test_a_job_that_is_no_longer_allowed_ends_and_frees_its_slots(harness: Harness) -> None:
    job_id, (first, _) = with_spare(harness)
    lose(harness, [first])
    end_all([first])
    store_env(harness, job_id, EXPLOIT)
    assert harness.keep_spares() == 0
    job = harness.job(job_id)
    assert (job.state, job.spare_slots) == (JobState.FAILED, 0)
    assert ranks_and_spares(harness, job_id)[1] == []


def test_an_elastic_job_keeps_its_size_while_a_spare_node_is_left(harness: Harness) -> None:
    elastic = {"resources": FOUR["resources"] | {"min_world_size": 2}}
    job_id, (first, _) = with_spare(harness, **elastic)
    harness.add_node("d", slots=1)
    lose(harness, [first])
    end_all([first])
    assert harness.keep_spares() == 1
    assert harness.attempt(job_id).layout.world_size == 4
    first, second = harness.claim_all(job_id)
    second.train(11)
    lose(harness, [first])
    end_all([first])
    assert harness.keep_spares() == 0
    run_round(harness)
    assert harness.attempt(job_id).layout.world_size == 2


def test_quotas_and_slot_hours_count_spare_slots(harness: Harness, context: Context) -> None:
    create_project(context, ProjectRequest(name="vision", max_slots=5), actor=ADA)
    for name in "abc":
        harness.add_node(name, slots=2)
    job_id = harness.submit(project="vision", **FOUR)
    harness.place()
    assert harness.job(job_id).reason == "needs 6, and project vision may hold 5 slots"
    cancel(context, job_id, actor=ADA, reason="")
    harness.running(**FOUR)
    harness.clock.advance(3600)
    with context.database.read() as connection:
        assert held_slots(connection) == {"default": 6}
        assert read_usage(connection, context.now(), ["default"]) == {"default": 6.0}


def test_slot_time_on_a_spare_node_is_a_category_and_sums_exactly(
    harness: Harness, context: Context
) -> None:
    began = context.now()
    job_id, supervisors = with_spare(harness)
    harness.clock.advance(100)
    for supervisor in supervisors:
        supervisor.end("succeeded")
    harness.clock.advance(50)
    with context.database.read() as connection:
        rows = connection.execute(select(holdings).where(holdings.c.job_id == job_id)).all()
        assert sorted((row.node, row.spare) for row in rows) == [
            ("a", False),
            ("b", False),
            ("c", True),
        ]
        held = read_holdings(
            connection, since=began, until=began + timedelta(days=1), now=context.now()
        )
    (spare,) = [each for each in held if each.spare]
    start, end = milliseconds(spare.since), milliseconds(spare.until)
    assert [*spent_by_day(spare, None, start=start, end=end).values()] == [
        {TimeCategory.SPARE: 2 * 100_000}
    ]


def test_slots_that_a_job_keeps_are_held_in_all_views(harness: Harness, context: Context) -> None:
    job_id = searching(harness)
    harness.add_node("e", slots=2)
    with context.database.read() as connection:
        offers = {offer.node: len(offer.free) for offer in read_offers(connection)}
    views = {view.name: view for view in list_nodes(context, scope=SYSTEM_SCOPE)}
    assert [views[name].free_slots for name in "bcde"] == [0, 0, 2, 2]
    assert {name: views[name].free_slots for name in offers} == offers
    for name in "bc":
        (holding,) = views[name].allocations
        assert (holding.job_id, holding.allocation.slots) == (job_id, (0, 1))

"""Races of transactions: one wins, and none is half done. Threads on both databases."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event, select, update

from server.api.auth.tokens import make_secret
from server.cluster.nodes.capacity import read_offers
from server.core.context import Context
from server.core.database.slot_tables import holdings
from server.core.database.tables import attempt_nodes, attempts, events, jobs, nodes
from server.core.errors import ConflictError, RefusalError
from server.core.events.store import NewEvent, append_event
from server.core.liveness import beat
from server.core.subject import Actor, Subject
from server.jobs.attempts.node_heartbeat import node_heartbeat
from server.jobs.checkpoints.service import export
from server.jobs.jobs.service import cancel, stop
from server.scheduler.rounds.placements import Placement, place
from server.scheduler.rounds.reconcile import Reconciler
from server.scheduler.rounds.round import Placer
from tests.actors import ADA, BOB
from tests.server.claims import claim
from tests.server.harness import WORKER, Harness, RecordingDispatcher, Supervisor
from tests.server.submit import submit
from trainyard.protocol.attempt import NodeAllocation
from trainyard.protocol.rest.checkpoints import ExportRequest
from trainyard.protocol.rest.nodes import NodeDrained
from trainyard.protocol.states import AttemptNodeState, JobState
from trainyard.protocol.worker_messages import (
    PROTOCOL,
    ClaimReply,
    NodeHeartbeat,
    WorkerIdentity,
)
from trainyard.run.failures import FailureReason
from trainyard.spec.job import parse_job_spec

ROUNDS = 5


def race(*actions: Callable[[], object]) -> list[object]:
    """Run the actions concurrently; return the result or refusal of each."""
    barrier = threading.Barrier(len(actions))

    def run(action: Callable[[], object]) -> object:
        barrier.wait(timeout=30)
        try:
            return action()
        except RefusalError as refusal:
            return refusal

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(run, actions))


def refused(results: Sequence[object]) -> int:
    return sum(isinstance(result, RefusalError) for result in results)


def test_one_claim_wins(harness: Harness, context: Context) -> None:
    harness.add_node(slots=ROUNDS)
    for _ in range(ROUNDS):
        job_id = harness.submit()
        harness.place()
        attempt_id = harness.attempt(job_id).id
        results = race(*[claiming(context, attempt_id)] * 4)
        assert refused(results) == 3
        assert all(isinstance(r, ConflictError) for r in results if isinstance(r, RefusalError))
        assert harness.kinds(job_id).count("claimed") == 1


def test_a_claim_and_its_repeats_are_granted_once(harness: Harness, context: Context) -> None:
    harness.add_node(slots=ROUNDS)
    for _ in range(ROUNDS):
        job_id = harness.submit()
        harness.place()
        attempt_id = harness.attempt(job_id).id
        mine, other = (claiming(context, attempt_id, make_secret()) for _ in range(2))
        results = race(mine, mine, mine, other)
        granted = [result for result in results if isinstance(result, ClaimReply)]
        assert len(granted) in {1, 3}
        assert len({reply.attempt_token for reply in granted}) == 1
        assert harness.kinds(job_id).count("claimed") == 1


def claiming(context: Context, attempt_id: str, secret: str | None = None) -> Callable[[], object]:
    return lambda: claim(context, attempt_id, node="node-1", worker=WORKER, secret=secret)


def test_two_placers_give_no_slot_twice(harness: Harness, context: Context) -> None:
    """Like a scheduler that has not noticed the loss of its lead."""
    harness.add_node(slots=4)
    job_ids = [harness.submit(resources={"world_size": 2}) for _ in range(6)]
    placers = [Placer(context, RecordingDispatcher()) for _ in range(3)]
    race(*[placer.run for placer in placers])
    with context.database.read() as connection:
        held = connection.execute(select(attempt_nodes.c.slots)).all()
        numbers = connection.execute(select(attempts.c.job_id, attempts.c.number)).all()
    slots = [slot for row in held for slot in row.slots]
    assert sorted(slots) == [0, 1, 2, 3]
    assert len(numbers) == 2
    assert sum(harness.job(job_id).state == JobState.STARTING for job_id in job_ids) == 2


def test_two_jobs_never_get_the_same_slots(harness: Harness, context: Context) -> None:
    """Like two schedulers that both read before either wrote."""
    harness.add_node(slots=1)
    with context.database.read() as connection:
        offers = read_offers(connection)
    slot = [NodeAllocation(node="node-1", node_rank=0, slots=(0,))]
    queued = [harness.job(harness.submit()) for _ in range(6)]
    placements = [Placement(job.id, job.queued_at, slot) for job in queued]
    results = race(*[partial(place, context, [each], offers) for each in placements])
    assert sum(bool(messages) for messages in results) == 1
    assert sum(harness.job(job.id).state == JobState.STARTING for job in queued) == 1


def test_nodes_that_end_at_once_end_the_attempt_once(harness: Harness) -> None:
    for name in ("a", "b", "c"):
        harness.add_node(name, slots=1)
    for _ in range(ROUNDS):
        job_id, supervisors = harness.running(resources={"world_size": 3, "nodes": 3})
        race(*[ending(supervisor) for supervisor in supervisors])
        assert harness.job(job_id).state == JobState.SUCCEEDED
        assert harness.kinds(job_id).count("attempt_ended") == 1


def ending(supervisor: Supervisor) -> Callable[[], object]:
    return lambda: supervisor.end("succeeded")


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_stop_cancel_claim_and_failure_at_once(
    harness: Harness, context: Context, round_number: int
) -> None:
    """Whatever comes first, the job has one end and its records agree."""
    worker = WorkerIdentity(folder="b" * 32, boot_id="b" * 36)
    harness.add_node("a", slots=1)
    harness.add_node("b", slots=1, worker=worker)
    job_id = harness.submit(resources={"world_size": 2, "nodes": 2}, retry={"max_retries": 0})
    harness.place()
    attempt_id = harness.attempt(job_id).id
    first = Supervisor(harness, attempt_id, node="a")
    race(
        lambda: claim(context, attempt_id, node="b", worker=worker),
        lambda: stop(context, job_id, actor=ADA, reason=""),
        lambda: cancel(context, job_id, actor=BOB, reason=""),
        lambda: first.end("failed", FailureReason.TRAINER_ERROR),
    )
    if harness.shares(job_id)[1].state == AttemptNodeState.CLAIMED:
        assert harness.attempt(job_id).desired == "cancel"
        gone = NodeHeartbeat(protocol=PROTOCOL, node="b", worker=worker, gone=(attempt_id,))
        node_heartbeat(context, gone)
    assert harness.attempt(job_id).state == "ended"
    assert harness.job(job_id).state in {"failed", "stopped", "cancelled"}
    assert harness.kinds(job_id).count("job_ended") == 1


def test_a_last_report_and_a_verdict_of_silence(harness: Harness, context: Context) -> None:
    beat(context)
    harness.add_node(slots=1)
    for _ in range(ROUNDS):
        node_heartbeat(context, NodeHeartbeat(protocol=PROTOCOL, node="node-1", worker=WORKER))
        job_id, (supervisor,) = harness.running(retry={"node_lost_after_seconds": 40, "on": []})
        for _second in range(10):
            harness.clock.advance(5)
            beat(context)
        reconciler = Reconciler(context, RecordingDispatcher())
        race(reconciler.run, ending(supervisor))
        assert harness.job(job_id).state in {JobState.SUCCEEDED, JobState.FAILED}
        assert harness.kinds(job_id).count("attempt_ended") == 1


def held_on(harness: Harness, node: str) -> list[int]:
    """Return each slot of a node once for each share that holds it."""
    live = attempt_nodes.c.state != AttemptNodeState.ENDED
    with harness.context.database.read() as connection:
        rows = connection.scalars(
            select(attempt_nodes.c.slots).where(attempt_nodes.c.node == node, live)
        )
        return sorted(slot for slots in rows for slot in slots)


def test_a_spare_node_and_a_job_get_no_slot_twice(harness: Harness, context: Context) -> None:
    beat(context)
    for name in "abc":
        harness.add_node(name, slots=2)
    job_id, _ = harness.running(resources={"world_size": 4, "nodes": 2, "spare_nodes": 1})
    on_c = update(nodes).where(nodes.c.name == "c")

    def submit_and_place() -> None:
        harness.submit(resources={"world_size": 2})
        Placer(context, RecordingDispatcher()).run()

    for _ in range(ROUNDS):
        with context.database.write() as connection:
            connection.execute(on_c.values(offline_since=context.now()))
        harness.keep_spares()
        assert held_on(harness, "c") == []
        with context.database.write() as connection:
            connection.execute(on_c.values(offline_since=None))
        harness.clock.advance(5)
        race(harness.keep_spares, submit_and_place)
        assert held_on(harness, "c") in ([], [0, 1])
        with context.database.read() as connection:
            others = connection.scalars(
                select(jobs.c.id).where(jobs.c.id != job_id, jobs.c.state != JobState.CANCELLED)
            ).all()
        for other in others:
            cancel(context, other, actor=ADA, reason="")


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_a_replacement_and_a_cancel(harness: Harness, context: Context, round_number: int) -> None:
    beat(context)
    for name in "abc":
        harness.add_node(name, slots=2)
    resources = {"world_size": 4, "nodes": 2, "spare_nodes": 1}
    job_id, (first, second) = harness.running(resources=resources)
    second.end("failed", FailureReason.NODE_LOST)
    first.end("cancelled")
    race(harness.keep_spares, lambda: cancel(context, job_id, actor=ADA, reason=""))
    harness.keep_spares()
    assert harness.job(job_id).state == JobState.CANCELLED
    assert harness.job(job_id).spare_slots == 0
    assert [held_on(harness, name) for name in "abc"] == [[], [], []]


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_a_release_and_the_end_of_the_attempt_count_a_spare_node_once(
    harness: Harness, context: Context, round_number: int
) -> None:
    beat(context)
    for name in "ab":
        harness.add_node(name, slots=1)
    resources = {"world_size": 1, "nodes": 1, "spare_nodes": 1}
    job_id, (supervisor,) = harness.running(resources=resources)
    with context.database.write() as connection:
        connection.execute(update(nodes).where(nodes.c.name == "b").values(notice="spot"))
    race(harness.keep_spares, ending(supervisor))
    assert harness.job(job_id).spare_slots == 0
    with context.database.read() as connection:
        counted = connection.scalars(select(holdings.c.node).where(holdings.c.spare)).all()
    assert counted == ["b"]


def test_one_key_makes_one_job(context: Context) -> None:
    spec = parse_job_spec({})
    results = race(*[lambda: submit(context, spec, actor=ADA, idempotency_key="k").id] * 4)
    assert len(set(results)) == 1
    with context.database.read() as connection:
        assert len(connection.execute(select(jobs.c.id)).all()) == 1


def test_event_ids_follow_commits(harness: Harness, context: Context) -> None:
    """A reader that remembers its greatest id misses none."""
    writers, each = 4, 25
    done = threading.Event()

    def write(name: str) -> None:
        for number in range(each):
            with context.database.write() as connection:
                for _ in range(2):
                    event = NewEvent(
                        NodeDrained(draining=True), Actor(name), Subject(), str(number)
                    )
                    append_event(context, connection, event)

    def tail() -> list[int]:
        seen: list[int] = []
        while True:
            last_round = done.is_set()
            after = select(events.c.id).where(events.c.id > (seen[-1] if seen else 0))
            with context.database.read() as connection:
                seen += connection.scalars(after.order_by(events.c.id)).all()
            if last_round:
                return seen

    with ThreadPoolExecutor(writers + 1) as pool:
        reader = pool.submit(tail)
        list(pool.map(write, [f"w{i}" for i in range(writers)]))
        done.set()
        assert len(reader.result()) == writers * each * 2


@pytest.mark.parametrize("jobs_waiting", [3, 60])
def test_a_round_costs_the_same_queries_however_long_the_queue(
    harness: Harness, context: Context, jobs_waiting: int
) -> None:
    beat(context)
    harness.add_node(slots=4)
    running, _ = harness.running(resources={"world_size": 4})
    for _ in range(jobs_waiting):
        harness.submit(resources={"world_size": 2})
    harness.place()
    statements: list[Any] = []
    event.listen(
        context.database.engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_: statements.append(statement),
    )
    harness.reconciler.run()
    harness.place()
    queries = [s for s in statements if s.lstrip().startswith(("SELECT", "UPDATE", "INSERT"))]
    # One finds recoveries of lost attempts, one the quotas of projects, one the last logs of ended
    # programs' ranks, and three, once a minute, artifacts without an owner.
    assert len(queries) <= 15, queries
    assert harness.job(running).state == JobState.RUNNING


def test_two_exports_never_settle_on_one_folder(harness: Harness, context: Context) -> None:
    harness.add_node(slots=2)
    saved = []
    for _ in range(2):
        job_id, _ = harness.running()
        saved.append(harness.commit_checkpoint(job_id, 1))
    for number in range(ROUNDS):
        request = ExportRequest(name=f"mine-{number}")
        results = race(*[partial(export, context, one, request, actor=ADA) for one in saved])
        assert refused(results) == 1
        (refusal,) = (result for result in results if isinstance(result, RefusalError))
        assert re.search(
            rf"operation \w+ writes .* checkpoints:exports/mine-{number}", str(refusal)
        )

"""The offer of the nodes follows from the shares that hold slots, after every change."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, select, text, update

from server.cluster.nodes.capacity import CapacityReader, held_on, read_capacity, read_offers
from server.cluster.nodes.queries import list_nodes
from server.cluster.placement.demand import Offer
from server.core.context import Context
from server.core.database.slot_tables import HOLDS_SLOTS
from server.core.database.tables import attempt_nodes, attempts, jobs, nodes
from server.core.visibility.job_labels import label
from server.core.visibility.scope import SYSTEM_SCOPE
from tests.server.harness import Harness
from trainyard.protocol.rest.jobs import Progress
from trainyard.protocol.worker_messages import OLDEST_PROTOCOL, PROTOCOL


def offers(context: Context) -> Sequence[Offer]:
    with context.database.read() as connection:
        return sorted(read_offers(connection), key=lambda offer: offer.node)


def test_only_the_offer_of_a_node_that_changes_is_made_anew(
    harness: Harness, context: Context
) -> None:
    harness.add_node("a", slots=2)
    harness.add_node("b", slots=1)
    before = offers(context)
    job_id, (supervisor,) = harness.running(resources={"world_size": 2})
    held = offers(context)
    assert (held[0].free, held[0].holders) == ((), {label("default", harness.job(job_id).name): 2})
    assert held[1] is before[1]
    supervisor.end("succeeded")
    assert offers(context) == before
    with context.database.write() as connection:
        labeled = update(nodes).where(nodes.c.name == "a").values(set_labels={"zone": "x"})
        connection.execute(labeled)
    labels = [offer.labels for offer in offers(context)]
    assert labels == [{**before[0].labels, "zone": "x"}, before[1].labels]


def test_a_reader_that_keeps_attempts_returns_what_a_new_one_reads(
    harness: Harness, context: Context
) -> None:
    for name in "abcd":
        harness.add_node(name, slots=2)
    job_ids = [harness.running(resources={"world_size": size})[0] for size in (1, 1, 2, 4)]
    with context.database.read() as connection:
        of_job = dict(connection.execute(select(attempts.c.job_id, attempts.c.id)).all())
    attempt_ids = [of_job[job_id] for job_id in job_ids]
    ids = {
        attempt_nodes.c.attempt_id: attempt_ids,
        attempts.c.id: attempt_ids,
        jobs.c.id: job_ids,
        nodes.c.name: [*"abcd"],
    }
    chance, now = random.Random(2), context.now()
    changes: list[tuple[Any, str, Sequence[Any]]] = [
        (attempt_nodes, "state", ("running", "placed", "ended")),
        (attempt_nodes, "slots", ([0], [1], [0, 1])),
        (attempt_nodes, "lost_at", (None, now)),
        (attempt_nodes, "unreachable_since", (None, now)),
        (attempts, "desired", ("run", "stop", "cancel")),
        (attempts, "ordered_at", (None, now, now - timedelta(hours=1))),
        (attempts, "started_at", (None, now, now - timedelta(days=1))),
        (jobs, "state", ("starting", "running", "stopping")),
        (jobs, "name", ("x", "y")),
        (jobs, "priority", (0, 7)),
        (jobs, "progress", (Progress(steps=9), Progress(steps=9, seconds_left=9.0))),
        (nodes, "notice", (None, "goes away")),
        (nodes, "set_labels", ({}, {"zone": "x"})),
    ]
    reader = CapacityReader()
    ends: set[timedelta | None] = set()
    for moment in range(100):
        table, column, values = chance.choice(changes)
        key = next(iter(table.primary_key))
        with context.database.write() as connection:
            changed = update(table).where(key == chance.choice(ids[key]))
            connection.execute(changed.values({column: chance.choice(values)}))
        later = now + timedelta(seconds=10 * moment)  # some orders become overdue
        with context.database.read() as connection:
            found = reader.read(connection, later)
            assert found == read_capacity(connection, later)
        for each in found.holdings:
            ends.add(None if each.ends_at is None else each.ends_at - later)
    assert ends == {None, timedelta(seconds=9), timedelta(seconds=60)}


def test_what_has_not_changed_of_an_attempt_is_kept(harness: Harness, context: Context) -> None:
    harness.add_node("a", slots=2)
    harness.running()
    reader = CapacityReader()
    with context.database.read() as connection:
        (first,), (again,) = (reader.read(connection, context.now()).holdings for _ in range(2))
    assert again is first


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_shares_that_have_ended_are_not_read(context: Context) -> None:
    live = select(attempt_nodes.c.slots).where(HOLDS_SLOTS)
    with context.database.read() as connection:
        plan = connection.execute(text(f"EXPLAIN QUERY PLAN {live}")).all()
    assert "ix_attempt_nodes_holding" in str(plan)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_placement_reads_no_shares_that_have_ended(context: Context) -> None:
    plans: list[str] = []

    def explain(_: object, cursor: Any, statement: str, values: Any, *__: object) -> None:
        plans.append(str(cursor.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()))

    with context.database.read() as connection:
        event.listen(connection, "before_cursor_execute", explain)
        assert held_on(connection, ["a", "b"]) == set()
    _begin, plan = plans
    assert "ix_attempt_nodes_holding" in plan


def test_a_node_whose_worker_is_no_longer_served_takes_no_jobs(
    harness: Harness, context: Context
) -> None:
    """A node of a database from before 1.0, until its worker is upgraded."""
    harness.add_node("old")
    with context.database.write() as connection:
        connection.execute(update(nodes).values(protocol=OLDEST_PROTOCOL - 1))
    assert offers(context) == []
    with context.database.write() as connection:
        connection.execute(update(nodes).values(protocol=OLDEST_PROTOCOL))
    assert [each.node for each in offers(context)] == ["old"]


@pytest.mark.parametrize(
    ("protocol", "upgraded"), [(OLDEST_PROTOCOL - 1, "worker"), (PROTOCOL + 1, "server")]
)
def test_a_node_whose_worker_is_not_served_names_the_remedy(
    harness: Harness, context: Context, protocol: int, upgraded: str
) -> None:
    harness.add_node("old")
    assert list_nodes(context, scope=SYSTEM_SCOPE)[0].problems == ()
    with context.database.write() as connection:
        connection.execute(update(nodes).values(protocol=protocol))
    (problem,) = list_nodes(context, scope=SYSTEM_SCOPE)[0].problems
    assert f"protocol {protocol}" in problem
    assert problem.endswith(f"upgrade the {upgraded}")

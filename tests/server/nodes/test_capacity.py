"""What the nodes offer is read from the shares that hold slots, and follows every change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import event, select, text, update

from server.context import Context
from server.database.slot_tables import HOLDS_SLOTS
from server.database.tables import attempt_nodes, nodes
from server.nodes.capacity import read_offers
from server.placement.demand import Offer
from server.scheduling.placements import held_on
from tests.server.harness import Harness


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
    assert (held[0].free, held[0].holders) == ((), {harness.job(job_id).name: 2})
    assert held[1] is before[1]
    supervisor.end("succeeded")
    assert offers(context) == before
    with context.database.write() as connection:
        labeled = update(nodes).where(nodes.c.name == "a").values(set_labels={"zone": "x"})
        connection.execute(labeled)
    labels = [offer.labels for offer in offers(context)]
    assert labels == [{**before[0].labels, "zone": "x"}, before[1].labels]


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

"""Spare nodes that left, and others that are reserved in place of them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import select

from server.context import Context
from server.database.slot_tables import holdings
from server.jobs.service import cancel
from tests.actors import ADA
from tests.server.elastic.spare_nodes import (
    FOUR,
    change,
    go_offline,
    look_for_spares,
    ranks_and_spares,
    with_spare,
)
from tests.server.harness import Harness
from tests.server.statements import statements
from trainyard.protocol.rest.nodes import Drain
from trainyard.protocol.states import AttemptState


def test_a_spare_node_that_leaves_is_replaced_while_training_goes_on(harness: Harness) -> None:
    job_id, _ = with_spare(harness)
    change(harness, "c", notice="spot")
    assert harness.empty() == 0
    harness.spares.run()
    assert ranks_and_spares(harness, job_id)[1] == []
    harness.add_node("d", slots=2)
    look_for_spares(harness)
    assert ranks_and_spares(harness, job_id)[1] == ["d"]
    assert harness.attempt(job_id).state == AttemptState.RUNNING
    look_for_spares(harness)
    assert ranks_and_spares(harness, job_id)[1] == ["d"]


@pytest.mark.parametrize(
    ("column", "useless", "usable"),
    [
        ("drain", Drain(running="finish", by="ada", at=datetime(2026, 1, 1, tzinfo=UTC)), None),
        ("withheld", {"1": "held by another program"}, {}),
    ],
)
def test_a_spare_node_that_is_usable_again_is_reserved_again(
    harness: Harness, column: str, useless: object, usable: object
) -> None:
    job_id, supervisors = with_spare(harness)
    change(harness, "c", **{column: useless})
    harness.clock.advance(7)
    look_for_spares(harness)
    assert ranks_and_spares(harness, job_id)[1] == []
    assert harness.job(job_id).spare_slots == 0
    change(harness, "c", **{column: usable})
    look_for_spares(harness)
    assert ranks_and_spares(harness, job_id)[1] == ["c"]
    assert harness.job(job_id).spare_slots == 2
    harness.clock.advance(9)
    for supervisor in supervisors:
        supervisor.end("succeeded")
    with harness.context.database.read() as connection:
        of_spares = holdings.c.spare & (holdings.c.job_id == job_id)
        rows = connection.execute(select(holdings).where(of_spares).order_by(holdings.c.since))
        assert [(row.until - row.since).total_seconds() for row in rows] == [7 + 5, 9]


def test_a_round_reads_once_where_no_spare_node_needs_anything(
    harness: Harness, context: Context
) -> None:
    with_spare(harness)
    harness.add_node("d", slots=4)
    change(harness, "c", slots=4, withheld={"3": "held by another program"})
    look_for_spares(harness)
    with statements(context) as seen:
        harness.spares.run()
    assert len([each for each in seen if each.lstrip().startswith("SELECT")]) == 1
    assert not [each for each in seen if each.lstrip().startswith(("INSERT", "UPDATE", "DELETE"))]


def test_a_missing_spare_takes_no_node_that_a_waiting_job_needs(harness: Harness) -> None:
    job_id, _ = with_spare(harness)
    go_offline(harness, "c")
    harness.spares.run()
    harness.add_node("d", slots=2)
    waiting = harness.submit(resources={"world_size": 6}, training=FOUR["training"])
    harness.place()
    look_for_spares(harness)
    assert ranks_and_spares(harness, job_id)[1] == []
    cancel(harness.context, waiting, actor=ADA, reason="")
    look_for_spares(harness)
    assert len(ranks_and_spares(harness, job_id)[1]) == 1

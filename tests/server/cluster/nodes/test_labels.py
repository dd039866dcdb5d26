"""Labels of nodes: labels set by people override those of the worker's settings."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from server.cluster.nodes.changes import set_labels
from server.cluster.nodes.queries import list_nodes
from server.core.context import Context
from server.core.database.tables import events, nodes
from server.core.errors import InvalidRequestError, NotFoundError
from server.core.visibility.scope import SYSTEM_SCOPE
from tests.actors import ADA
from tests.server.harness import Harness
from trainyard.base.labels import MAX_LABELS

ZONE_A: dict[str, Any] = {"resources": {"node_selector": {"zone": "a"}}}


def labels_of(context: Context, name: str) -> dict[str, str]:
    return next(
        view.labels for view in list_nodes(context, scope=SYSTEM_SCOPE) if view.name == name
    )


def register_with(harness: Harness, name: str, **labels: str) -> None:
    """Register the worker of a node again, with labels of its settings."""
    with harness.context.database.write() as connection:
        connection.execute(
            update(nodes).where(nodes.c.name == name).values(worker_labels=dict(labels))
        )


def test_labels_that_people_set_win_and_stay(harness: Harness, context: Context) -> None:
    harness.add_node("a")
    register_with(harness, "a", zone="a", rack="r1")
    view = set_labels(context, "a", {"zone": "b", "block": "b1"}, actor=ADA)
    assert view.labels == {"zone": "b", "rack": "r1", "block": "b1"}
    register_with(harness, "a", zone="c")
    assert labels_of(context, "a") == {"zone": "b", "block": "b1"}
    assert set_labels(context, "a", {"zone": None}, actor=ADA).labels == {
        "zone": "c",
        "block": "b1",
    }


def test_a_change_is_an_event_and_a_repeat_is_none(harness: Harness, context: Context) -> None:
    harness.add_node("a")
    for _ in range(2):
        set_labels(context, "a", {"zone": "a", "rack": None}, actor=ADA)
    set_labels(context, "a", {"zone": None}, actor=ADA)
    with context.database.read() as connection:
        rows = connection.execute(
            select(events.c.actor, events.c.message)
            .where(events.c.kind == "node_labeled")
            .order_by(events.c.id)
        ).all()
    assert [tuple(row) for row in rows] == [
        ("ada", "labels of a: zone=a"),
        ("ada", "labels of a: zone withdrawn"),
    ]


def test_an_unknown_node_and_too_many_labels_are_refused(
    harness: Harness, context: Context
) -> None:
    harness.add_node("a")
    with pytest.raises(NotFoundError, match="no node has the name 'b'"):
        set_labels(context, "b", {"zone": "a"}, actor=ADA)
    set_labels(context, "a", {f"k{i}": "" for i in range(MAX_LABELS)}, actor=ADA)
    with pytest.raises(InvalidRequestError, match=f"a would have {MAX_LABELS + 1} labels"):
        set_labels(context, "a", {"one-more": ""}, actor=ADA)


def test_a_job_waits_for_a_node_with_its_labels_and_starts_when_one_has_them(
    harness: Harness, context: Context
) -> None:
    harness.add_node("a")
    job_id = harness.submit(**ZONE_A)
    assert harness.place() == 0
    assert harness.job(job_id).reason == (
        "needs 1 slot; no node that is online has the labels zone=a"
    )
    set_labels(context, "a", {"zone": "a"}, actor=ADA)
    assert harness.place() == 1
    set_labels(context, "a", {"zone": "b"}, actor=ADA)
    assert [share.node for share in harness.shares(job_id)] == ["a"]


def test_an_excluded_node_gets_no_attempt(harness: Harness) -> None:
    harness.add_node("a")
    harness.add_node("b", slots=8)
    job_id = harness.submit(resources={"exclude_nodes": ["a"]})
    assert harness.place() == 1
    assert [share.node for share in harness.shares(job_id)] == ["b"]

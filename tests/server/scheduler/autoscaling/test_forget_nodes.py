"""Rows of ended requests are deleted in time; unknown requests are shown as lost."""

from __future__ import annotations

import pytest
from sqlalchemy import func, insert, select

from server.cluster.supply.service import delete_source
from server.core.context import Context
from server.core.database.metric_and_log_tables import node_points
from server.core.database.tables import nodes
from server.scheduler.autoscaling.forget_nodes import (
    KEPT,
    LOST,
    LOST_AFTER,
    forget_nodes,
    note_lost,
)
from tests.actors import ADA
from tests.server.clock import FakeClock
from tests.server.cluster.supply.site import Site
from tests.server.harness import Harness


def joined(site: Site) -> tuple[str, str]:
    """Return a request with a node that has a series, and the node."""
    request_id = site.running()
    site.join(request_id)
    node = f"slurm-{request_id}-0"
    row = {"node": node, "seconds": 900, "start": 0, "data": {"load": [1, 1, 1, 1]}}
    with site.context.database.write() as connection:
        connection.execute(insert(node_points), [row])
    return request_id, node


def left(context: Context) -> tuple[set[str], int]:
    """Return the names of the nodes, and the number of rows of series."""
    with context.database.read() as connection:
        names = set(connection.scalars(select(nodes.c.name)))
        return names, connection.scalar(select(func.count()).select_from(node_points)) or 0


def test_nodes_of_ended_requests_are_forgotten_with_their_series(
    site: Site, context: Context, clock: FakeClock
) -> None:
    request_id, _ = joined(site)
    open_one, open_node = joined(site)
    site.describe(request_id, "ended", gone=True)
    clock.advance(KEPT.total_seconds() - 1)
    assert forget_nodes(context) == 0
    clock.advance(2)
    assert forget_nodes(context) == 1
    assert left(context) == ({open_node}, 1)
    assert forget_nodes(context) == 0
    assert site.request(open_one).state == "running"


def test_a_node_that_an_attempt_names_stays_without_its_series(
    site: Site, harness: Harness, context: Context, clock: FakeClock
) -> None:
    request_id, node = joined(site)
    harness.submit(resources={"world_size": 4})
    assert harness.place() == 1
    site.describe(request_id, "ended", gone=True)
    clock.advance(KEPT.total_seconds() + 1)
    assert forget_nodes(context) == 1
    assert left(context) == ({node}, 0)
    assert forget_nodes(context) == 0


def test_nodes_of_a_deleted_source_are_forgotten(
    site: Site, context: Context, clock: FakeClock
) -> None:
    request_id, node = joined(site)
    site.describe(request_id, "ended", gone=True)
    delete_source(context, "slurm", actor=ADA)
    forget_nodes(context)
    assert left(context) == ({node}, 1)
    clock.advance(KEPT.total_seconds() + 1)
    forget_nodes(context)
    assert left(context) == (set(), 0)


def test_many_nodes_are_forgotten_some_at_a_time(
    site: Site, context: Context, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.scheduler.autoscaling.forget_nodes.FORGOTTEN_AT_ONCE", 2)
    for _ in range(3):
        site.describe(joined(site)[0], "ended", gone=True)
    clock.advance(KEPT.total_seconds() + 1)
    assert [forget_nodes(context) for _ in range(3)] == [2, 1, 0]


def test_a_request_that_is_unknown_for_a_day_is_shown_as_lost_once(
    site: Site, context: Context, clock: FakeClock
) -> None:
    request_id = site.running()
    site.report(complete=True)
    clock.advance(LOST_AFTER.total_seconds() - 1)
    assert note_lost(context) == 0
    clock.advance(1)
    assert note_lost(context) == 1
    assert site.request(request_id).explanation == LOST
    site.describe(request_id, "unknown")
    assert note_lost(context) == 0
    assert site.told("source_changed")[-1] == f"request {request_id} of slurm is {LOST}"
    site.describe(request_id, "running")
    assert site.request(request_id).explanation is None
    clock.advance(LOST_AFTER.total_seconds() + 1)
    assert note_lost(context) == 0

"""The network between nodes: which of them an attempt checks, and which it has checked."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import Connection, exists, or_, select, union, update

from server.database.column_types import text_of
from server.database.held import HAS_RANKS
from server.database.tables import attempt_nodes, attempts, nodes
from trainyard.run.failures import FailureReason

CHECKED_FOR = timedelta(days=1)
"""Time for which a check counts; it takes less than a second of a launch."""


def unchecked_nodes(connection: Connection, names: Collection[str], now: datetime) -> set[str]:
    """Return those of the nodes whose network was not checked for a day.

    A check does not count either where a later attempt of the node and others has ended as a hang,
    of which the network may be the cause.
    """
    if not names:
        return set()
    checked_at, since = nodes.c.network_checked_at, now - CHECKED_FOR
    named = select(nodes.c.name).where(nodes.c.name.in_(names))
    due = named.where(or_(checked_at.is_(None), checked_at <= since))
    peer = attempt_nodes.alias("peer")
    of_several = exists().where(
        peer.c.attempt_id == attempt_nodes.c.attempt_id, peer.c.node != attempt_nodes.c.node
    )
    hung = (
        named.join(attempt_nodes, attempt_nodes.c.node == nodes.c.name)
        .join(attempts, attempts.c.id == attempt_nodes.c.attempt_id)
        .where(
            attempts.c.ended_at > since,
            attempts.c.ended_at > checked_at,
            text_of(connection, attempts.c.failure, "reason") == FailureReason.HANG,
            HAS_RANKS,
            of_several,
        )
    )
    return set(connection.scalars(union(due, hung)))


def record_check(connection: Connection, attempt_id: str, now: datetime) -> None:
    """Record that the ranks of an attempt have passed the check of its nodes, if it had one.

    The nodes are locked in the order of their names, so that no two transactions wait crosswise.
    """
    checked = (
        select(nodes.c.name)
        .join(attempt_nodes, attempt_nodes.c.node == nodes.c.name)
        .join(attempts, attempts.c.id == attempt_nodes.c.attempt_id)
        .where(attempts.c.id == attempt_id, attempts.c.check_network, HAS_RANKS)
        .order_by(nodes.c.name)
    )
    names = connection.scalars(checked.with_for_update(of=nodes, key_share=True)).all()
    if names:
        found = update(nodes).where(nodes.c.name.in_(names))
        connection.execute(found.values(network_checked_at=now))

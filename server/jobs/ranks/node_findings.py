"""Findings of ranks about nodes: a working network between nodes, and unusable devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, or_, select, update

from server.cluster.nodes.slots import withheld_by_launch
from server.core.database.held import HAS_RANKS
from server.core.database.tables import attempt_nodes, attempts, nodes

CHECKED_FOR = timedelta(days=1)
"""Time for which a network check is valid; a check adds less than a second to a launch."""


def unchecked_nodes(connection: Connection, names: Collection[str], now: datetime) -> set[str]:
    """Return the names in `names` of nodes without a network check within `CHECKED_FOR`."""
    if not names:
        return set()
    checked_at = nodes.c.network_checked_at
    due = or_(checked_at.is_(None), checked_at <= now - CHECKED_FOR)
    return set(connection.scalars(select(nodes.c.name).where(nodes.c.name.in_(names), due)))


def record_check(connection: Connection, attempt_id: str, now: datetime) -> None:
    """Record that an attempt's nodes passed the network check, if the attempt had a check."""
    _store(connection, _lock_nodes(connection, attempt_id, attempts.c.check_network), now)


def forget_check(connection: Connection, attempt_id: str) -> None:
    """Forget the network check of a hung attempt's nodes, if the attempt has several nodes."""
    names = _lock_nodes(connection, attempt_id)
    if len(names) > 1:
        _store(connection, names, None)


def withhold_slots(
    connection: Connection, node: str, *, slots: Collection[int], unusable: Mapping[str, str]
) -> None:
    """Withhold a launch's slots on unusable devices, until a sample shows the devices usable.

    `unusable` has the reason by UUID of each device that ranks could not use.
    """
    mine = nodes.c.name == node
    found = select(nodes.c.hardware, nodes.c.withheld).where(mine)
    row = connection.execute(found.with_for_update(key_share=True)).one()
    more = withheld_by_launch(row.hardware, slots, unusable)
    connection.execute(update(nodes).where(mine).values(withheld=row.withheld | more))


def _lock_nodes(
    connection: Connection, attempt_id: str, *conditions: ColumnElement[bool]
) -> Sequence[str]:
    """Lock the nodes on which an attempt has ranks, and return their names.

    The nodes are locked in the order of their names, so that transactions never deadlock.
    """
    of_attempt = (
        select(nodes.c.name)
        .join(attempt_nodes, attempt_nodes.c.node == nodes.c.name)
        .join(attempts, attempts.c.id == attempt_nodes.c.attempt_id)
        .where(attempts.c.id == attempt_id, HAS_RANKS, *conditions)
        .order_by(nodes.c.name)
    )
    return connection.scalars(of_attempt.with_for_update(of=nodes, key_share=True)).all()


def _store(connection: Connection, names: Sequence[str], checked_at: datetime | None) -> None:
    if names:
        found = update(nodes).where(nodes.c.name.in_(names))
        connection.execute(found.values(network_checked_at=checked_at))

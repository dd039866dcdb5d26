"""The quotas of projects, read from the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection

from server.cluster.placement.quotas import Quota
from server.cluster.projects.queries import HAS_QUOTA, Project, held_slots
from server.cluster.projects.usage import ReadUsage, read_usage


def read_quotas(
    connection: Connection, now: datetime, *, usage: ReadUsage = read_usage
) -> Mapping[str, Quota]:
    """Return quotas by project; projects without a quota are omitted.

    If no project has a quota, nothing else is read.

    Args:
        connection: a transaction.
        now: the current time.
        usage: reads the slot-hours that projects have used.
    """
    rows = _limited(connection)
    if not rows:
        return {}
    held, used_up = held_slots(connection), _used_up(connection, now, rows=rows, usage=usage)
    return {
        row.name: Quota(held.get(row.name, 0), row.max_slots, used_up.get(row.name)) for row in rows
    }


def read_used_up(connection: Connection, now: datetime, *, usage: ReadUsage) -> Mapping[str, str]:
    """Return the projects without slot-hours left in this month, each with the reason as text."""
    return _used_up(connection, now, rows=_limited(connection), usage=usage)


def _limited(connection: Connection) -> Sequence[Project]:
    return Project.all(connection, Project.select().where(HAS_QUOTA))


def _used_up(
    connection: Connection, now: datetime, *, rows: Sequence[Project], usage: ReadUsage
) -> dict[str, str]:
    hours = {
        row.name: row.slot_hours_per_month for row in rows if row.slot_hours_per_month is not None
    }
    if not hours:
        return {}
    used = usage(connection, now, of=hours.keys())
    month = now.astimezone(UTC).strftime("%B")
    return {
        name: f"project {name} has used its {most:,.10g} slot-hours of {month}"
        for name, most in hours.items()
        if used.get(name, 0.0) >= most
    }

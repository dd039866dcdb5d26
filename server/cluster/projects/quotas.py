"""The quotas of projects, read from the database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy import Connection

from server.cluster.placement.quotas import Quota
from server.cluster.projects.queries import HAS_QUOTA, Project, held_slots
from server.cluster.projects.usage import ReadUsage, read_usage


def read_quotas(
    connection: Connection, now: datetime, *, usage: ReadUsage = read_usage
) -> Mapping[str, Quota]:
    """Return quotas by project; projects without a quota are omitted."""
    rows = Project.all(connection, Project.select().where(HAS_QUOTA))
    if not rows:
        return {}
    hours = {
        row.name: row.slot_hours_per_month for row in rows if row.slot_hours_per_month is not None
    }
    used = usage(connection, now, hours.keys()) if hours else {}
    month = now.astimezone(UTC).strftime("%B")
    used_up = {
        name: f"project {name} has used its {most:,.10g} slot-hours of {month}"
        for name, most in hours.items()
        if used.get(name, 0.0) >= most
    }
    held = held_slots(connection)
    return {
        row.name: Quota(held.get(row.name, 0), row.max_slots, used_up.get(row.name)) for row in rows
    }

"""Groups of queued jobs with equal demands; jobs of a project with a quota form separate groups."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, select, update

from server.core.database.scheduler_tables import demands
from server.core.database.tables import jobs
from server.core.database.upsert import insert_or_replace
from trainyard.protocol.states import JobState


def group_key(project: str | None, shape: Sequence[Any]) -> str:
    """Return the key of the group with these demand fields.

    `project` is None for jobs of a project without a quota.
    """
    return hashlib.sha256(orjson.dumps([project, *shape])).hexdigest()


def store_groups(connection: Connection, groups: Iterable[Mapping[str, Any]]) -> None:
    """Store groups that jobs are about to enter.

    Each group has a key, a shape (the demand in JSON) and the slots per job. An existing group
    keeps its reason. To prevent deadlocks, groups are stored in the order of their keys, which is
    also the order in which `forget_groups` locks them. `forget_groups` waits until this transaction
    ends, so it finds the jobs that have entered the groups.
    """
    insert_or_replace(connection, demands, sorted(groups, key=lambda group: str(group["key"])))


def move_groups(connection: Connection, project: str, *, has_quota: bool) -> None:
    """Move a project's queued jobs to other groups, after it got its first quota or lost its last.

    The caller's transaction holds the lock of the project. No spec is parsed, and no job leaves the
    queue. The jobs keep the reason why they wait until a round finds another reason.
    """
    waiting = (
        jobs.c.project == project,
        jobs.c.state == JobState.QUEUED,
        jobs.c.demand.is_not(None),
    )
    # Sorted by id, as in every statement that locks several jobs, to prevent deadlocks.
    locked = select(jobs.c.id).where(*waiting).order_by(jobs.c.id)
    connection.execute(locked.with_for_update(key_share=True))
    present = select(jobs.c.demand).where(*waiting)
    former = connection.execute(select(demands).where(demands.c.key.in_(present))).all()
    if not former:
        return
    key_of = {row.key: group_key(project if has_quota else None, row.shape) for row in former}
    store_groups(
        connection,
        [{"key": key_of[row.key], "shape": row.shape, "slots": row.slots} for row in former],
    )
    explained = update(demands).where(demands.c.key == bindparam("new"), demands.c.reason.is_(None))
    connection.execute(
        explained.values(reason=bindparam("because")),
        [{"new": key_of[row.key], "because": row.reason} for row in former],
    )
    moved = update(jobs).where(*waiting, jobs.c.demand == bindparam("former"))
    connection.execute(
        moved.values(demand=bindparam("new")),
        [{"former": key, "new": new} for key, new in key_of.items()],
    )

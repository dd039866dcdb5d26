"""Groups of queued jobs with equal demands.

Jobs of a project with a quota form separate groups. If the project limits its users, so do the jobs
of each user.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, literal, select, update

from server.cluster.projects.queries import read_grouping
from server.core.database.scheduler_tables import demands
from server.core.database.tables import jobs
from server.core.database.upsert import insert_or_replace
from trainyard.protocol.states import JobState


def group_key(shape: Sequence[Any], *, project: str, owner_id: str, by_user: bool | None) -> str:
    """Return the key of the group of a job.

    Args:
        shape: the fields of the job's demand.
        project: the project of the job.
        owner_id: the owner of the job.
        by_user: whether the project has groups for each user; None if it has no separate groups.
    """
    of = [None] if by_user is None else [project, owner_id] if by_user else [project]
    return hashlib.sha256(orjson.dumps([*of, *shape])).hexdigest()


def store_groups(connection: Connection, groups: Iterable[Mapping[str, Any]]) -> None:
    """Store groups that jobs are about to enter.

    Each group has a key, a shape (the demand in JSON) and the slots per job. An existing group
    keeps its reason. To prevent deadlocks, groups are stored in the order of their keys, which is
    also the order in which `forget_groups` locks them. `forget_groups` waits until this transaction
    ends, so it finds the jobs that have entered the groups.
    """
    insert_or_replace(connection, demands, sorted(groups, key=lambda group: str(group["key"])))


@contextmanager
def regrouping(connection: Connection, project: str) -> Iterator[None]:
    """Move a project's queued jobs to other groups if the block changes how they are grouped.

    They move after the first quota or limit of a user was set, or the last one removed. The
    caller's transaction holds the lock of the project. No spec is parsed, and no job leaves the
    queue. The jobs keep the reason why they wait until a round finds another reason.
    """
    before = read_grouping(connection, [project]).get(project)
    yield
    by_user = read_grouping(connection, [project]).get(project)
    if by_user != before:
        _move_groups(connection, project, by_user=by_user)


def _move_groups(connection: Connection, project: str, *, by_user: bool | None) -> None:
    waiting = (
        jobs.c.project == project,
        jobs.c.state == JobState.QUEUED,
        jobs.c.demand.is_not(None),
    )
    # Sorted by id, as in every statement that locks several jobs, to prevent deadlocks.
    locked = select(jobs.c.id).where(*waiting).order_by(jobs.c.id)
    connection.execute(locked.with_for_update(key_share=True))
    present = select(jobs.c.demand).where(*waiting)
    rows = connection.execute(select(demands).where(demands.c.key.in_(present))).all()
    former = {row.key: row for row in rows}
    owner = jobs.c.owner_id if by_user else literal("")
    pairs = connection.execute(select(jobs.c.demand, owner).where(*waiting).distinct())
    moves = [
        (row, owner_id, group_key(row.shape, project=project, owner_id=owner_id, by_user=by_user))
        for key, owner_id in pairs
        if (row := former.get(key)) is not None
    ]
    if not moves:
        return
    shapes = {new: {"key": new, "shape": row.shape, "slots": row.slots} for row, _, new in moves}
    store_groups(connection, shapes.values())
    explained = update(demands).where(demands.c.key == bindparam("new"), demands.c.reason.is_(None))
    reasons = [{"new": new, "because": row.reason} for row, _, new in moves]
    connection.execute(explained.values(reason=bindparam("because")), reasons)
    moved = update(jobs).where(*waiting, jobs.c.demand == bindparam("former"))
    values = [{"former": row.key, "new": new} for row, _, new in moves]
    if by_user:
        moved = moved.where(jobs.c.owner_id == bindparam("owner"))
        values = [each | {"owner": move[1]} for each, move in zip(values, moves, strict=True)]
    connection.execute(moved.values(demand=bindparam("new")), values)

"""The groups of the queue, each of jobs with the same demand.

All jobs of a group wait for the same reason, which is stored once per group. So a round writes as
much for ten thousand queued jobs as for ten. Projects with a quota have groups of their own,
because the quota is part of the reason. The group of a job is stored when the job enters the queue.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    or_,
    select,
    update,
)

from server.cluster.placement.demand import Demand
from server.cluster.projects.groups import group_key, store_groups
from server.cluster.projects.queries import keep_quotas
from server.core.context import Context
from server.core.database.column_types import StoredRecord
from server.core.database.rows import TypedRow
from server.core.database.scheduler_tables import demands
from server.core.database.tables import checkpoints, jobs, notices
from server.core.errors import UnreadableError
from server.core.events.notices import notify
from server.core.expected_time import expected_time
from server.core.subject import Subject
from server.jobs.jobs.checks import roots_of
from server.jobs.queue.duration import Duration, expected_durations, with_newer_history
from server.jobs.queue.order import ARRIVAL, GROUPED
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.rest.event_data import Waiting as WaitingNotice
from trainyard.protocol.rest.events import NOTICE_KIND_OF
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.protocol.states import AttemptCause, JobState
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout

logger = logging.getLogger(__name__)

GROUPED_AT_ONCE = 500
"""Maximum number of jobs that one round assigns to groups; each of these jobs is parsed in full."""
PUT_OFF_FOR = timedelta(seconds=15)
"""Pause before a round reconsiders a job that waits for something other than free slots."""
_DURATION: dict[str, Any] = {
    "lasts_seconds": bindparam("seconds"),
    "lasts_on": bindparam("on"),
    "lasts_on_name": bindparam("on_name"),
}
"""Columns of an expected duration, with their bind parameters."""
Waiting = tuple[str, datetime | None, str]
"""Id of a job, the time at which the job was queued, and the reason why the job waits."""


@dataclass(frozen=True, slots=True)
class NewJob(TypedRow):
    """A queued job without a group."""

    table: ClassVar[Table] = jobs
    id: str
    name: str
    queued_at: datetime | None
    spec: StoredRecord[JobSpec]
    pending: StoredRecord[PendingLaunch] | None
    project: str
    storage: str | None
    forked_from: str | None
    fork_step: int | None
    pace_digest: str | None
    attempt: int
    has_saved: Annotated[bool, exists().where(checkpoints.c.job_id == jobs.c.id)]


def lasts_of(seconds: float | None) -> timedelta | None:
    """Convert a stored expected duration, in seconds, to a timedelta."""
    return None if seconds is None else expected_time(seconds)


UNUSED = 5
"""Place in the stored fields of a demand that is always empty. Versions before 1.0 read there what
a worker of protocol 2 lacked: they still find their groups."""


@lru_cache(maxsize=1024)
def demand_of_shape(shape: str) -> Demand:
    """Return the demand that is stored as a JSON list of its fields, in order."""
    fields = orjson.loads(shape)
    del fields[UNUSED]
    size, nodes, device, roots, storage, units, selector, exclude, spares = fields
    return Demand(
        size,
        nodes,
        device,
        tuple(roots),
        storage and tuple(storage),
        tuple(units),
        tuple((key, value) for key, value in selector),
        tuple(exclude),
        spares,
    )


def demand_of(
    submitted: JobSpec, overrides: Overrides, layout: Layout, *, bound: str | None
) -> Demand:
    """Return the demand of a launch.

    Args:
        submitted: the job's spec.
        overrides: the overrides of the launch, relative to the spec.
        layout: the launch's layout.
        bound: UUID of the storage that holds the checkpoint of the launch; None without a
            checkpoint.
    """
    spec = overrides.apply_but_schedule(submitted)
    return Demand(
        world_size=layout.world_size,
        nodes=spec.resources.nodes,
        device=spec.resources.device,
        roots=roots_of(spec),
        storage=(spec.checkpoint.root, bound) if bound is not None else None,
        units=layout.node_units,
        node_selector=tuple(sorted(spec.resources.node_selector.items())),
        exclude_nodes=tuple(sorted({*spec.resources.exclude_nodes})),
        spare_nodes=spec.resources.spare_nodes,
    )


def enter_groups(context: Context, *, without: Collection[str] = ()) -> frozenset[str]:
    """Assign newly queued jobs to their groups, and return their ids.

    A grouped job has only the reason of its group. An unreadable job is put off, with the read
    error as its reason.

    Args:
        context: the server's context.
        without: ids of jobs that must not be placed yet; the next round considers these jobs again.
    """
    due = or_(jobs.c.not_before.is_(None), jobs.c.not_before <= context.now())
    new = (
        NewJob.select()
        .where(jobs.c.state == JobState.QUEUED, jobs.c.demand.is_(None), due)
        .where(jobs.c.spare_slots == 0)  # others are placed on the slots that they keep
        .where(jobs.c.id.not_in(without))
        .order_by(*ARRIVAL)
        .limit(GROUPED_AT_ONCE)
    )
    with context.database.read() as connection:
        rows = NewJob.all(connection, new)
        durations = expected_durations(connection, rows)
    if not rows:
        return frozenset()
    found: list[tuple[NewJob, Demand]] = []
    unreadable: list[Waiting] = []
    # Every statement that locks several jobs locks them by id, so that no two deadlock.
    for row in sorted(rows, key=lambda row: str(row.id)):
        try:
            found.append((row, demand_of_new(row)))
        except UnreadableError as error:
            logger.error("%s", error)
            unreadable.append((row.id, row.queued_at, str(error)))
    groups: dict[tuple[str | None, Demand], dict[str, Any]] = {}
    grouped: list[dict[str, Any]] = []
    with context.database.write() as connection:
        with_quota = keep_quotas(connection, {row.project for row, _ in found})
        for row, demand in found:
            project = row.project if row.project in with_quota else None
            group = groups.get((project, demand))
            if group is None:  # once for each distinct demand: `astuple` makes a deep copy
                fields = astuple(demand)
                shape = (*fields[:UNUSED], (), *fields[UNUSED:])
                group = {"key": group_key(project, shape), "shape": shape, "slots": demand.slots}
                groups[project, demand] = group
            duration = _duration_values(durations.get(row.id))
            grouped.append(
                {
                    "job": row.id,
                    "since": row.queued_at,
                    "group": group["key"],
                    **_leave_values(row),
                    **duration,
                }
            )
        put_off(context, connection, unreadable)
        if grouped:
            store_groups(connection, groups.values())
            entered = update(jobs).where(_unchanged(bindparam("job"), bindparam("since")))
            connection.execute(
                entered.values(
                    demand=bindparam("group"),
                    reason=None,
                    max_runtime_seconds=bindparam("bound"),
                    leave_seconds=bindparam("leave"),
                    **_DURATION,
                ),
                grouped,
            )
    return frozenset(row["job"] for row in grouped)


def learn_durations(
    context: Context, waiting: Mapping[str, str], *, since: datetime
) -> Sequence[str]:
    """Store expected durations of waiting jobs, computed from recently ended attempts.

    Args:
        context: the server's context.
        waiting: pace digests of about a hundred jobs without a duration, by job id.
        since: time of the last check.

    Returns:
        The ids of jobs that now have a duration.
    """
    if not waiting:
        return ()
    with context.database.read() as connection:
        job_ids = with_newer_history(connection, waiting, since=since)
        if not job_ids:
            return ()
        rows = NewJob.all(connection, NewJob.select().where(GROUPED, jobs.c.id.in_(job_ids)))
        found = {k: v for k, v in expected_durations(connection, rows).items() if v is not None}
    values = [
        {"job": row.id, "since": row.queued_at, **_duration_values(found[row.id])}
        for row in sorted(rows, key=lambda row: row.id)
        if row.id in found
    ]
    if values:
        entered = update(jobs).where(_unchanged(bindparam("job"), bindparam("since")))
        with context.database.write() as connection:
            connection.execute(entered.values(**_DURATION), values)
    return list(found)


def _duration_values(duration: Duration | None) -> dict[str, Any]:
    """Return the bind parameters for a statement that sets `_DURATION`."""
    if duration is None:
        return {"seconds": None, "on": None, "on_name": None}
    return {
        "seconds": duration.seconds,
        "on": duration.device,
        "on_name": duration.device_name,
    }


def put_off(context: Context, connection: Connection, waiting: Iterable[Waiting]) -> None:
    """Take queued jobs out of the queue for a while, so that they do not block slots."""
    take_out(context, connection, waiting, not_before=context.now() + PUT_OFF_FOR)


def take_out(
    context: Context, connection: Connection, waiting: Iterable[Waiting], **values: object
) -> None:
    """Take queued jobs out of their groups, and store a reason for each.

    A job that was queued again after it was read stays in its group. Live views get one notice for
    each reason.

    Args:
        context: the server's context.
        connection: a writing transaction.
        waiting: the jobs, with the reasons why they wait.
        values: further columns to set.
    """
    for job_id, queued_at, reason in sorted(waiting, key=lambda each: each[0]):
        held = update(jobs).where(_unchanged(job_id, queued_at))
        taken = connection.execute(held.values(reason=reason, demand=None, **values))
        told = connection.scalars(
            select(notices.c.data).where(
                notices.c.job_id == job_id,
                notices.c.kind == NOTICE_KIND_OF[WaitingNotice],
                notices.c.at >= queued_at,
            )
        )
        if taken.rowcount and all(data["reason"] != reason for data in told):
            notify(context, connection, subject=Subject(job_id), data=WaitingNotice(reason=reason))


def _unchanged(job_id: Any, queued_at: Any) -> ColumnElement[bool]:
    """Return the SQL condition that a job has been queued since the given time."""
    queued = jobs.c.state == JobState.QUEUED
    return and_(jobs.c.id == job_id, queued, jobs.c.queued_at == queued_at)


def forget_groups(context: Context) -> int:
    """Delete groups without a queued job, and return their number.

    A job may enter an empty group concurrently, because another scheduler took over or the job's
    project changed. The job then leaves the group here, and enters it again in the next round.
    """
    members = select(jobs.c.demand).where(GROUPED)
    empty = select(demands.c.key).where(demands.c.key.not_in(members)).order_by(demands.c.key)
    with context.database.write() as connection:
        # As in `store_groups`, the rows are locked in the order of their keys, so that no two
        # transactions deadlock.
        locked = empty.with_for_update()
        forgotten = connection.execute(delete(demands).where(demands.c.key.in_(locked)))
        lost = jobs.c.demand.not_in(select(demands.c.key))
        connection.execute(update(jobs).where(GROUPED, lost).values(demand=None))
    return forgotten.rowcount


def demand_of_new(row: NewJob) -> Demand:
    """Return the demand of a job without a group.

    Raises:
        UnreadableError: another version wrote the spec or the launch.
    """
    submitted = row.spec.read(f"spec of job {row.id}")
    if row.pending is None:
        raise UnreadableError(f"the launch of job {row.id} cannot be read: it is null")
    pending = row.pending.read(f"launch of job {row.id}")
    # A job with a checkpoint, whether its own or that of its origin, is bound to the checkpoint's
    # storage.
    bound = row.storage if row.has_saved or row.forked_from is not None else None
    demand = demand_of(submitted, pending.overrides, pending.layout, bound=bound)
    # A retry does not wait for spare nodes, because a missing spare node may be broken.
    return replace(demand, spare_nodes=0) if pending.cause == AttemptCause.RETRY else demand


def _leave_values(row: NewJob) -> dict[str, float | None]:
    """Return the bound of a readable job's next attempt, and the time to leave, in seconds."""
    assert row.pending is not None, "its demand is known"
    pending = row.pending.read(f"launch of job {row.id}")
    spec = pending.overrides.apply_but_schedule(row.spec.read(f"spec of job {row.id}"))
    grace = None if spec.program is None else spec.program.stop_grace_seconds
    return {"bound": spec.resources.max_runtime_seconds, "leave": grace}

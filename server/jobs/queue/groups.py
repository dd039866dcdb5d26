"""Groups of the queue: a group is all queued jobs with the same demand.

The jobs of a group wait for the same reason, which is stored once per group. So a round writes as
much for ten thousand queued jobs as for ten. A project with a quota has separate groups, because
its quota is part of the reason. So has each user of a project that limits its users.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, or_, select, update

from server.cluster.placement.demand import Demand
from server.cluster.projects.groups import group_key, store_groups
from server.cluster.projects.queries import keep_grouping
from server.core.context import Context
from server.core.database.scheduler_tables import demands
from server.core.database.tables import jobs, notices
from server.core.errors import UnreadableError
from server.core.events.notices import notify
from server.core.expected_time import expected_time
from server.core.people.unix_accounts import accounts_of
from server.core.subject import Subject
from server.jobs.jobs.checks import roots_of
from server.jobs.queue.duration import Duration, expected_durations, with_newer_history
from server.jobs.queue.order import ARRIVAL, GROUPED
from server.jobs.queue.queries import NewJob
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.rest.event_data import Waiting as WaitingNotice
from trainyard.protocol.rest.events import NOTICE_KIND_OF
from trainyard.protocol.states import AttemptCause, JobState
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout

logger = logging.getLogger(__name__)

GROUPED_AT_ONCE = 500
"""Maximum number of jobs that one round assigns to groups; each of these jobs is parsed in full."""
PUT_OFF_FOR = timedelta(seconds=15)
"""Pause before a round reconsiders a job that waits for something other than free slots."""
Waiting = tuple[str, datetime | None, str]
"""Id of a job, the time at which the job was queued, and the reason why the job waits."""


def lasts_of(seconds: float | None) -> timedelta | None:
    """Convert a stored expected duration, in seconds, to a timedelta."""
    return None if seconds is None else expected_time(seconds)


@lru_cache(maxsize=1024)
def demand_of_shape(shape: str) -> Demand:
    """Return the demand that is stored as a JSON list of its fields, in order."""
    # The sixth field is always empty; versions before 1.0 read it.
    size, nodes, device, roots, storage, _, units, labels, exclude, spares, *account = orjson.loads(
        shape
    )
    return Demand(
        size,
        nodes,
        device,
        tuple(roots),
        storage and tuple(storage),
        tuple(units),
        tuple((key, value) for key, value in labels),
        tuple(exclude),
        spares,
        *account,
    )


def demand_of(
    submitted: JobSpec,
    overrides: Overrides,
    layout: Layout,
    *,
    bound: str | None,
    account: str | None,
) -> Demand:
    """Return the demand of a launch.

    Args:
        submitted: spec of the job.
        overrides: changes of the spec by the launch.
        layout: layout of the launch.
        bound: UUID of the storage that holds the launch's checkpoint; None without a checkpoint.
        account: Unix account of the job's owner; None without one.
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
        account=account,
    )


def enter_groups(context: Context, *, without: Collection[str] = ()) -> frozenset[str]:
    """Assign at most `GROUPED_AT_ONCE` newly queued jobs to their groups, and return their ids.

    An unreadable job is put off, with the error as its reason. Jobs in `without` are left for later
    rounds.
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
    for row in sorted(rows, key=lambda row: row.id):
        try:
            found.append((row, demand_of_new(row)))
        except UnreadableError as error:
            logger.error("%s", error)
            unreadable.append((row.id, row.queued_at, str(error)))
    groups: dict[tuple[object, Demand], dict[str, Any]] = {}
    grouped: list[dict[str, Any]] = []
    with context.database.write() as connection:
        accounts = accounts_of(connection, {row.owner_id for row, _ in found}, hold=True)
        found = [
            (row, demand) for row, demand in found if accounts.get(row.owner_id) == row.account
        ]
        grouping = keep_grouping(connection, {row.project for row, _ in found})
        for row, demand in found:
            by_user = grouping.get(row.project)
            of = None if by_user is None else (row.project, row.owner_id if by_user else None)
            group = groups.get((of, demand))
            if group is None:  # once for each distinct demand: `astuple` makes a deep copy
                *fields, account = astuple(demand)
                # As in `demand_of_shape`. Without an account, the shape is as in versions before.
                named = () if account is None else (account,)
                shape = (*fields[:5], (), *fields[5:], *named)
                key = group_key(shape, project=row.project, owner_id=row.owner_id, by_user=by_user)
                group = {"key": key, "shape": shape, "slots": demand.slots}
                groups[of, demand] = group
            values = {"group": group["key"], "owner": row.owner_id, **_leave_values(row)}
            grouped.append(values | _duration_values(row, durations.get(row.id)))
        put_off(context, connection, unreadable)
        if grouped:
            store_groups(connection, groups.values())
            same_owner = _STORE_DURATION.where(jobs.c.owner_id == bindparam("owner"))
            entered = same_owner.values(
                demand=bindparam("group"),
                reason=None,
                max_runtime_seconds=bindparam("bound"),
                leave_seconds=bindparam("leave"),
            )
            connection.execute(entered, grouped)
    return frozenset(row["job"] for row in grouped)


def learn_durations(
    context: Context, waiting: Mapping[str, str], *, since: datetime
) -> Sequence[str]:
    """Store new expected durations of the waiting jobs that `with_newer_history` returns.

    `waiting` has the pace digests, by job id, of about a hundred jobs without a duration. Return
    the ids of the jobs that now have a duration.
    """
    if not waiting:
        return ()
    with context.database.read() as connection:
        job_ids = with_newer_history(connection, waiting, since=since)
        if not job_ids:
            return ()
        rows = NewJob.all(connection, NewJob.select().where(GROUPED, jobs.c.id.in_(job_ids)))
        found = expected_durations(connection, rows)
    values = [
        _duration_values(row, found[row.id])
        for row in sorted(rows, key=lambda row: row.id)
        if row.id in found
    ]
    if values:
        with context.database.write() as connection:
            connection.execute(_STORE_DURATION, values)
    return list(found)


def _duration_values(row: NewJob, duration: Duration | None) -> dict[str, Any]:
    """Return the parameters of `_STORE_DURATION`."""
    values = {"job": row.id, "since": row.queued_at}
    if duration is None:
        return {**values, "seconds": None, "on": None, "on_name": None}
    on, name = duration.device, duration.device_name
    return {**values, "seconds": duration.seconds, "on": on, "on_name": name}


def put_off(context: Context, connection: Connection, waiting: Iterable[Waiting]) -> None:
    """Take queued jobs out of the queue for a while, so that they do not block slots."""
    take_out(context, connection, waiting, not_before=context.now() + PUT_OFF_FOR)


def take_out(
    context: Context, connection: Connection, waiting: Iterable[Waiting], **values: object
) -> None:
    """Take queued jobs out of their groups, and store a reason for each.

    A job that was queued again after it was read stays in its group. Live views get one notice for
    each reason. `values` are further columns to set.
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
    """Return the SQL condition that a job is still queued, with an unchanged queue time."""
    queued = jobs.c.state == JobState.QUEUED
    return and_(jobs.c.id == job_id, queued, jobs.c.queued_at == queued_at)


_STORE_DURATION = (
    update(jobs)
    .where(_unchanged(bindparam("job"), bindparam("since")))
    .values(
        lasts_seconds=bindparam("seconds"),
        lasts_on=bindparam("on"),
        lasts_on_name=bindparam("on_name"),
    )
)


def forget_groups(context: Context) -> int:
    """Delete groups without a queued job, and return their number.

    A job may enter an empty group at the same time, because another scheduler took over or the
    project changed. Such a job leaves the group here, and enters it again in the next round.
    """
    members = select(jobs.c.demand).where(GROUPED)
    empty = select(demands.c.key).where(demands.c.key.not_in(members)).order_by(demands.c.key)
    with context.database.write() as connection:
        locked = empty.with_for_update()  # by key, as in `store_groups`, to prevent deadlocks
        forgotten = connection.execute(delete(demands).where(demands.c.key.in_(locked)))
        lost = jobs.c.demand.not_in(select(demands.c.key))
        connection.execute(update(jobs).where(GROUPED, lost).values(demand=None))
    return forgotten.rowcount


def demand_of_new(row: NewJob) -> Demand:
    """Return the demand of a job without a group.

    Raises:
        UnreadableError: another version wrote the spec or the launch.
    """
    submitted, pending = row.read()
    # A job with a checkpoint of its own or of another job is bound to the checkpoint's storage.
    bound = row.storage if row.has_saved or row.forked_from is not None else None
    account = row.account
    demand = demand_of(submitted, pending.overrides, pending.layout, bound=bound, account=account)
    # A retry does not wait for spare nodes, because a missing spare node may be broken.
    return replace(demand, spare_nodes=0) if pending.cause == AttemptCause.RETRY else demand


def _leave_values(row: NewJob) -> dict[str, float | None]:
    """Return the bound of a job's next attempt, and the time to leave, in seconds."""
    submitted, pending = row.read()
    spec = pending.overrides.apply_but_schedule(submitted)
    grace = None if spec.program is None else spec.program.stop_grace_seconds
    return {"bound": spec.resources.max_runtime_seconds, "leave": grace}

"""The queue in groups of equal demand: the next jobs of each group, and why it waits.

Jobs of a group wait for the same reason, which is stored once: a round writes as much for ten
thousand queued jobs as for ten. The group of a job is recorded when the job enters the queue.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar

import orjson
from sqlalchemy import (
    Connection,
    Table,
    bindparam,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)

from server.context import Context
from server.database.column_types import StoredRecord
from server.database.rows import TypedRow
from server.database.tables import checkpoints, demands, jobs
from server.database.upsert import insert_absent
from server.errors import UnreadableError
from server.events.notices import notify_all
from server.jobs.checks import roots_of
from server.nodes.capacity import Demand, Shape
from server.protocol_2 import lacking
from server.subject import Subject
from trainyard.protocol.rest.event_data import Waiting
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.protocol.states import JobState
from trainyard.spec.job import JobSpec

logger = logging.getLogger(__name__)

GROUPED_AT_ONCE = 500
"""Jobs that one round assigns to groups; each is parsed whole."""
PLACED_AT_ONCE = 100
"""Most jobs of a group that one round places, in a transaction each."""
PUT_OFF_FOR = timedelta(seconds=15)
"""Pause before another look at a job that cannot start yet for a reason that no slot removes."""
NOTIFIED = 20
"""First jobs of a group whose live views get a notice of a changed reason; others poll."""

# Both begin with the columns of `ix_jobs_queue`, so that counting and ranking read the index alone.
_GROUPED = (jobs.c.state == JobState.QUEUED) & jobs.c.demand.is_not(None)
_ORDER = (jobs.c.priority.desc(), jobs.c.queued_at, jobs.c.id)
_TURN = func.row_number().over(partition_by=jobs.c.demand, order_by=_ORDER).label("turn")
_RANKED = select(jobs.c.id, _TURN).where(_GROUPED).subquery()


@dataclass(frozen=True, slots=True)
class NewJob(TypedRow):
    """A queued job without a group."""

    table: ClassVar[Table] = jobs
    id: str
    name: str
    queued_at: datetime | None
    spec: StoredRecord[JobSpec]
    pending: StoredRecord[PendingLaunch] | None
    storage: str | None
    forked_from: str | None
    has_saved: Annotated[bool, exists().where(checkpoints.c.job_id == jobs.c.id)]


@dataclass(frozen=True, slots=True)
class HeadJob(TypedRow):
    """One of the next jobs of a group."""

    table: ClassVar[Table] = jobs
    id: str
    name: str
    queued_at: datetime | None
    demand: Annotated[str, jobs.c.demand]
    turn: Annotated[int, _RANKED.c.turn]
    """Place in its group, from 1."""
    shape: Annotated[Any, demands.c.shape]
    reason: Annotated[str | None, demands.c.reason]
    """Why its group waits, as stored."""


@dataclass(frozen=True, slots=True)
class WaitingJob(TypedRow):
    """A queued job with a reason of its own."""

    table: ClassVar[Table] = jobs
    id: str
    reason: Annotated[str, jobs.c.reason]


@dataclass(frozen=True, slots=True)
class GroupedJob(WaitingJob):
    """A queued job with the reason of its group."""

    reason: Annotated[str, demands.c.reason]


@dataclass(frozen=True)
class Heads:
    """The next jobs of each group, in the order of the queue."""

    rows: Sequence[HeadJob]
    demands: Sequence[Demand]
    """What each needs, in the same order."""
    cut: frozenset[Shape]
    """Shapes of groups that hold more jobs than are here."""


class JobQueue:
    """The queued jobs whose `not_before` has passed."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def group(self, *, without: Collection[str] = ()) -> Sequence[NewJob]:
        """Assign jobs that have just come into the queue to their group, and return them.

        A grouped job has the reason of its group and none of its own. One that cannot be read is
        put off, with its error as the reason.

        Args:
            without: jobs that must not be placed yet; the next round considers them again.
        """
        due = or_(jobs.c.not_before.is_(None), jobs.c.not_before <= self._context.now())
        new = (
            NewJob.select()
            .where(jobs.c.state == JobState.QUEUED, jobs.c.demand.is_(None), due)
            .where(jobs.c.id.not_in(without))
            .order_by(*_ORDER)
            .limit(GROUPED_AT_ONCE)
        )
        with self._context.database.read() as connection:
            rows = NewJob.all(connection, new)
        if not rows:
            return ()
        shapes: dict[str, Shape] = {}
        unreadable: dict[str, str] = {}
        for row in rows:
            try:
                shapes[row.id] = _shape(row)
            except UnreadableError as error:
                logger.error("%s", error)
                unreadable[row.id] = str(error)
        rows = [row for row in rows if row.id in shapes]
        keys = {shape: _key(shape) for shape in set(shapes.values())}
        unchanged = (
            (jobs.c.id == bindparam("job"))
            & (jobs.c.state == JobState.QUEUED)
            & (jobs.c.queued_at == bindparam("since"))
        )
        with self._context.database.write() as connection:
            put_off(self._context, connection, unreadable)
            if rows:
                insert_absent(
                    connection,
                    demands,
                    [{"key": key, "shape": shape} for shape, key in keys.items()],
                )
                connection.execute(
                    update(jobs).where(unchanged).values(demand=bindparam("group"), reason=None),
                    [
                        {"job": row.id, "since": row.queued_at, "group": keys[shapes[row.id]]}
                        # By id, as every statement that locks several jobs: no two wait crosswise.
                        for row in sorted(rows, key=lambda row: str(row.id))
                    ],
                )
        return rows

    def sizes(self, connection: Connection) -> dict[str, int]:
        """Return the number of jobs of each group, from the index alone."""
        size = func.count().label("size")
        grouped = select(jobs.c.demand, size).where(_GROUPED).group_by(jobs.c.demand)
        return {row.demand: row.size for row in connection.execute(grouped)}

    def heads(self, connection: Connection, *, free_slots: int) -> Heads:
        """Return the next jobs of each group, at least one more than could find a slot.

        Args:
            connection: a transaction.
            free_slots: free slots of the cluster; no job needs fewer than one.
        """
        most = min(max(free_slots + 1, NOTIFIED), PLACED_AT_ONCE)
        found = HeadJob.all(
            connection,
            HeadJob.select()
            .select_from(_RANKED)
            .join(jobs, jobs.c.id == _RANKED.c.id)
            .join(demands, demands.c.key == jobs.c.demand)
            .where(_RANKED.c.turn <= most + 1)
            .order_by(*_ORDER),
        )
        rows = [row for row in found if row.turn <= most]
        return Heads(
            rows=rows,
            demands=[Demand(row.id, row.name, *_read_shape(row.shape)) for row in rows],
            cut=frozenset(_read_shape(row.shape) for row in found if row.turn > most),
        )

    def explain(self, heads: Heads, waiting: Mapping[str, str], *, new: Collection[NewJob]) -> None:
        """Store changed reasons, one a group, and notify live views.

        Args:
            heads: the next jobs of each group.
            waiting: why some of them wait, by job id.
            new: jobs that entered the queue in this round; each gets a notice.
        """
        waits = [row for row in heads.rows if row.id in waiting]
        changed = {row.demand: waiting[row.id] for row in waits if waiting[row.id] != row.reason}
        if not changed and not new:
            return
        notified = {row.id for row in waits if row.demand in changed and row.turn <= NOTIFIED}
        notified |= {row.id for row in new}
        with self._context.database.write() as connection:
            if changed:
                connection.execute(
                    update(demands)
                    .where(demands.c.key == bindparam("group"))
                    .values(reason=bindparam("because")),
                    [{"group": key, "because": changed[key]} for key in sorted(changed)],
                )
            still = GroupedJob.select().where(
                jobs.c.id.in_(notified),
                jobs.c.state == JobState.QUEUED,
                demands.c.key == jobs.c.demand,
                demands.c.reason.is_not(None),
            )
            rows = GroupedJob.all(connection, still.order_by(jobs.c.id))
            notify_waiting(self._context, connection, rows)


def notify_waiting(context: Context, connection: Connection, waiting: Sequence[WaitingJob]) -> None:
    """Notify live views of why jobs wait; `waiting` is sorted by job id."""
    notify_all(
        context, connection, [(Subject(job.id), Waiting(reason=job.reason)) for job in waiting]
    )


def put_off(context: Context, connection: Connection, reasons: Mapping[str, str]) -> None:
    """Take queued jobs out of the queue for a while, so that they keep no slots from others.

    Args:
        context: the server's surroundings.
        connection: a writing transaction.
        reasons: why each of them waits, by job id.
    """
    if not reasons:
        return
    waiting = [WaitingJob(job_id, reasons[job_id]) for job_id in sorted(reasons)]
    queued = (jobs.c.id == bindparam("job")) & (jobs.c.state == JobState.QUEUED)
    later = context.now() + PUT_OFF_FOR
    connection.execute(
        update(jobs)
        .where(queued)
        .values(reason=bindparam("because"), demand=None, not_before=later),
        [{"job": job.id, "because": job.reason} for job in waiting],
    )
    notify_waiting(context, connection, waiting)


def forget_groups(context: Context) -> int:
    """Delete groups without a queued job, and return their number.

    A scheduler that took over may add a job to such a group at the same time; that job loses the
    group here and gets it again in the next round.
    """
    members = select(jobs.c.demand).where(_GROUPED)
    with context.database.write() as connection:
        forgotten = connection.execute(delete(demands).where(demands.c.key.not_in(members)))
        lost = jobs.c.demand.not_in(select(demands.c.key))
        connection.execute(update(jobs).where(_GROUPED, lost).values(demand=None))
    return forgotten.rowcount


def _shape(row: NewJob) -> Shape:
    submitted = row.spec.read(f"spec of job {row.id}")
    if row.pending is None:
        raise UnreadableError(f"the launch of job {row.id} cannot be read: it is null")
    pending = row.pending.read(f"launch of job {row.id}")
    spec = pending.overrides.apply(submitted)
    # A job that saved, or that starts from a checkpoint, is bound to the storage that holds it.
    bound = row.storage if row.has_saved or row.forked_from is not None else None
    return (
        pending.layout.world_size,
        spec.resources.nodes,
        spec.resources.device,
        roots_of(spec),
        (spec.checkpoint.root, bound) if bound is not None else None,
        lacking(submitted, pending.overrides),
    )


def _key(shape: Shape) -> str:
    return hashlib.sha256(orjson.dumps(shape)).hexdigest()


def _read_shape(stored: Any) -> Shape:
    world_size, nodes, device, roots, storage, fields = stored
    return (world_size, nodes, device, tuple(roots), storage and tuple(storage), tuple(fields))

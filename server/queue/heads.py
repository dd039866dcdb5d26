"""The heads of the queue: the jobs that a round considers, and why they wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar

from sqlalchemy import Connection, Table, bindparam, func, or_, select, update

from server.context import Context
from server.database.rows import TypedRow
from server.database.tables import demands, jobs
from server.events.notices import notify_all
from server.placement.decide import JobGroup, QueuedJob
from server.placement.demand import Demand
from server.queue.groups import demand_of_shape, lasts_of
from server.queue.order import GROUPED, PLACE, TURN, read_order
from server.subject import Subject
from trainyard.protocol.rest.event_data import Waiting as WaitingNotice
from trainyard.protocol.states import JobState

FIRST_AT_ONCE = 500
"""First jobs of the queue that a round reads, whatever their groups: most that it places."""
NOTIFIED = 20
"""First jobs of a group whose live views get a notice of a changed reason; others poll."""

HEADS_AT_ONCE = 1000
"""Most jobs that a round reads of many groups behind these, but one of each group."""
GROUP_AT_ONCE = 100
"""Most jobs of a group that a round reads behind these."""


@dataclass(frozen=True, slots=True)
class HeadJob(TypedRow):
    """One of the next jobs of a group."""

    table: ClassVar[Table] = jobs
    id: str
    name: str
    queued_at: datetime | None
    group: Annotated[str, jobs.c.demand.label("group")]
    place: Annotated[int, PLACE]
    """Place in the queue, from 1."""
    turn: Annotated[int, TURN]
    """Place in its group, from 1."""
    shape: Annotated[Any, demands.c.shape]
    """The fields of its demand, in their order."""
    reason: Annotated[str | None, demands.c.reason]
    """Why its group waits, as stored."""
    lasts_seconds: float | None
    lasts_on: str | None
    priority: int
    project: str
    min_world_size: int | None

    @property
    def demand(self) -> Demand:
        """What it needs."""
        return demand_of_shape(self.shape)

    @property
    def queued(self) -> QueuedJob:
        """The job, as it is placed."""
        return QueuedJob(
            self.id,
            self.name,
            self.demand,
            lasts=lasts_of(self.lasts_seconds),
            lasts_on=self.lasts_on,
            priority=self.priority,
            project=self.project,
        )


@dataclass(frozen=True)
class Heads:
    """The next jobs of each group, in the order of the queue."""

    rows: Sequence[HeadJob]
    cut: frozenset[JobGroup]
    """Groups that hold more jobs than are here."""
    complete: int
    """How many of the first jobs of the queue are here without a gap."""


def group_sizes(connection: Connection) -> dict[str, int]:
    """Return the number of jobs of each group, from the index alone."""
    size = func.count().label("size")
    grouped = select(jobs.c.demand, size).where(GROUPED).group_by(jobs.c.demand)
    return {row.demand: row.size for row in connection.execute(grouped)}


def read_heads(connection: Connection, *, sizes: Mapping[str, int], free_slots: int) -> Heads:
    """Return the first jobs of the queue and of each group, one more than could find a slot.

    Of many jobs fewer are read; what is left out is placed by later rounds.

    Args:
        connection: a transaction.
        sizes: number of the jobs of each group.
        free_slots: free slots of the cluster; no job needs fewer than one.
    """
    first = min(free_slots + 1, FIRST_AT_ONCE)
    most = min(max(free_slots + 1, NOTIFIED), GROUP_AT_ONCE, max(1, HEADS_AT_ONCE // len(sizes)))
    line = read_order(connection, turns=True).numbered().line
    rows = HeadJob.all(
        connection,
        HeadJob.select()
        .select_from(line)
        .join(jobs, jobs.c.id == line.c.id)
        .join(demands, demands.c.key == jobs.c.demand)
        .where(or_(line.c.turn <= most, line.c.place <= first))
        .order_by(line.c.place),
    )
    here = Counter(row.group for row in rows)
    cut = frozenset(row.queued.group for row in rows if here[row.group] < sizes.get(row.group, 0))
    gap = next((number for number, row in enumerate(rows) if row.place > number + 1), len(rows))
    return Heads(rows, cut, gap)


def explain(
    context: Context, heads: Heads, waiting: Mapping[str, str], *, new: Collection[str]
) -> None:
    """Store changed reasons, one a group, and notify live views.

    Args:
        context: the server's surroundings.
        heads: the next jobs of each group.
        waiting: why some of them wait, by job id.
        new: ids of jobs that entered the queue in this round; each gets a notice.
    """
    waits = [row for row in heads.rows if row.id in waiting]
    firsts: dict[str, HeadJob] = {}  # the others may be behind a quota that the first one is within
    for row in waits:
        firsts.setdefault(row.group, row)
    changed = {
        group: waiting[row.id] for group, row in firsts.items() if waiting[row.id] != row.reason
    }
    if not changed and not new:
        return
    notified = {row.id for row in waits if row.group in changed and row.turn <= NOTIFIED}
    with context.database.write() as connection:
        if changed:
            connection.execute(
                update(demands)
                .where(demands.c.key == bindparam("group"))
                .values(reason=bindparam("because")),
                [{"group": key, "because": changed[key]} for key in sorted(changed)],
            )
        still = select(jobs.c.id, demands.c.reason).where(
            jobs.c.id.in_(notified | set(new)),
            jobs.c.state == JobState.QUEUED,
            demands.c.key == jobs.c.demand,
            demands.c.reason.is_not(None),
        )
        rows = connection.execute(still.order_by(jobs.c.id)).all()
        told = [(Subject(row.id), WaitingNotice(reason=row.reason)) for row in rows]
        notify_all(context, connection, told)

"""The heads of the queue: the jobs that a round considers, and the reasons why they wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from sqlalchemy import Connection, bindparam, select, update

from server.cluster.placement.decide import Decisions
from server.cluster.placement.demand import Holding, QueuedJob
from server.core.context import Context
from server.core.database.scheduler_tables import demands
from server.core.database.tables import jobs
from server.core.events.notices import notify_all
from server.core.subject import Subject
from server.jobs.queue.order import ProjectShare, read_shares
from server.jobs.queue.scheduling_queue import GroupedJob, SchedulingQueue
from trainyard.protocol.rest.event_data import Waiting as WaitingNotice
from trainyard.protocol.states import JobState

FIRST_AT_ONCE = 500
"""First jobs of the queue that a round considers, regardless of their groups; it places no more."""
NOTIFIED = 20
"""First jobs of a group: their live views get a notice of a changed reason; others poll."""

HEADS_AT_ONCE = 1000
"""Most further jobs that a round considers of all groups together, but at least one of each."""
GROUP_AT_ONCE = 100
"""Most further jobs that a round considers of one group."""

DEMANDS_AT_ONCE = 200
"""Most different demands that a round considers; each takes some milliseconds on 1,000 nodes. If
more wait, rounds take turns with them: a round of all would outlast the lead."""
FIRST_DEMANDS = 50
"""Demands that every round considers: the first ones in the order of the queue that may keep nodes.
A job keeps its nodes only in rounds that consider it. Demands that keep none come last."""


@dataclass(frozen=True)
class Heads:
    """The first jobs of the queue and of each group, in the order of the queue."""

    rows: Sequence[GroupedJob]
    reasons: Mapping[str, str | None]
    """Why each group waits, as stored."""
    cut: frozenset[str]
    """Ids of the last rows of groups that have more jobs than rows here."""
    complete: int
    """Number of first rows that are decided in any case, an argument of `decide`."""
    demands: Set[str]
    """All waiting demands, also those without a row here."""
    next_turn: int | None
    """Index of the next round's first demand; None if all are here."""
    shares: Mapping[str, ProjectShare]
    """Held and largest slots of each project."""


def read_heads(
    connection: Connection,
    queue: SchedulingQueue,
    *,
    sizes: Mapping[str, int],
    with_quota: Collection[str],
    free_slots: int,
) -> Heads:
    """Return the first jobs of the queue and of each group: one more than there are free slots.

    Limits apply to long queues; later rounds place the rest.

    Args:
        connection: a transaction.
        queue: the jobs as last known; it is updated.
        sizes: number of the jobs of each group.
        with_quota: the projects that have a quota.
        free_slots: free slots of the cluster; no job needs fewer than one.
    """
    queue.update(connection, sizes, with_quota=with_quota)
    first = min(free_slots + 1, FIRST_AT_ONCE)
    most = min(max(free_slots + 1, NOTIFIED), GROUP_AT_ONCE, max(1, HEADS_AT_ONCE // len(sizes)))
    shares = read_shares(connection)
    rows, complete = queue.first(shares, limit=first, of_group=most)
    different = dict.fromkeys(row.shape for row in rows)
    chosen, next_turn = _in_turn(different.keys(), queue)
    complete = sum(row.shape in chosen for row in rows[:complete])
    rows = [row for row in rows if row.shape in chosen]
    here, last = Counter(row.group for row in rows), {row.group: row.id for row in rows}
    cut = frozenset(last[group] for group, count in here.items() if count < queue.size(group))
    stored = connection.execute(select(demands.c.key, demands.c.reason))
    return Heads(rows, dict(stored.all()), cut, complete, different.keys(), next_turn, shares)


def tagged(
    queue: SchedulingQueue, heads: Heads, *, holdings: Sequence[Holding]
) -> tuple[Sequence[QueuedJob], Sequence[Holding]]:
    """Return the heads for placement, and the holdings, with tags if they matter.

    Tags decide which jobs an attempt gives way to that was backfilled on an estimate alone.

    Args:
        queue: the jobs.
        heads: the first jobs of the queue.
        holdings: held slots of attempts.
    """
    jobs = [row.queued for row in heads.rows]
    if not any(holding.overtook_at for holding in holdings):
        return jobs, holdings

    def tag(each: QueuedJob | Holding, job_id: str, *, held: int = 0) -> float:
        return queue.tag(
            each.project,
            heads.shares.get(each.project, ProjectShare()),
            priority=each.priority,
            queued_at=each.queued_at,
            job_id=job_id,
            held=held,
        )

    return [replace(job, tag=tag(job, job.id)) for job in jobs], [
        replace(each, tag=tag(each, each.job_id, held=each.slots)) if each.overtook_at else each
        for each in holdings
    ]


def _in_turn(
    different: Collection[str], queue: SchedulingQueue
) -> tuple[Collection[str], int | None]:
    """Return the demands that a round considers, and the index of the next round's first one."""
    if len(different) <= DEMANDS_AT_ONCE:
        return different, None
    first = {*sorted(different, key=queue.keeping_none.__contains__)[:FIRST_DEMANDS]}
    others = [shape for shape in different if shape not in first]
    begin, count = queue.turn % len(others), DEMANDS_AT_ONCE - FIRST_DEMANDS
    in_turn = [*others[begin:], *others[:begin]][:count]
    return {*first, *in_turn}, (begin + count) % len(others)


def note_turn(queue: SchedulingQueue, heads: Heads, decisions: Decisions) -> None:
    """Store in the queue the state that decides the demands of the next round."""
    if heads.next_turn is None:
        queue.keeping_none.clear()
        return
    queue.turn = heads.next_turn
    waiting = {row.shape for row in heads.rows if row.id in decisions.waiting}
    keeping = {
        row.shape
        for row in heads.rows
        if row.id in decisions.placed or row.queued.demand in decisions.keeping
    }
    queue.keeping_none = ((waiting | queue.keeping_none) & heads.demands) - keeping


def explain(
    context: Context, heads: Heads, waiting: Mapping[str, str], *, new: Collection[str]
) -> None:
    """Store changed reasons, one for each group, and notify live views.

    Args:
        context: the server's surroundings.
        heads: the next jobs of each group.
        waiting: reasons of waiting jobs, by job id.
        new: ids of jobs that entered the queue in this round; each gets a notice.
    """
    waits: dict[str, list[str]] = {}
    for row in heads.rows:
        if row.id in waiting:
            waits.setdefault(row.group, []).append(row.id)
    # The reason of the first job: later ones may wait for a quota that it does not exceed.
    reasons = {group: waiting[job_ids[0]] for group, job_ids in waits.items()}
    changed = {
        group: reason for group, reason in reasons.items() if reason != heads.reasons.get(group)
    }
    if not changed and not new:
        return
    notified = {job_id for group in changed for job_id in waits[group][:NOTIFIED]}
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

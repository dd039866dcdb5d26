"""The heads of the queue: the jobs that a round considers, and why they wait."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from sqlalchemy import Connection, bindparam, select, update

from server.cluster.placement.decide import Decisions
from server.cluster.placement.demand import Holding, QueuedJob
from server.cluster.placement.quotas import Quota
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
"""Maximum number of jobs at the front of the queue that a round considers regardless of group."""
NOTIFIED = 20
"""Number of jobs at the head of each group that get a notice of a changed reason; views of later
jobs poll."""
HEADS_AT_ONCE = 1000
"""Maximum number of further jobs that a round considers from all groups together. A round considers
at least one job per group."""
GROUP_AT_ONCE = 100
"""Maximum number of further jobs that a round considers from one group."""
DEMANDS_AT_ONCE = 200
"""Maximum number of different demands that a round considers; each demand takes a few milliseconds
on 1,000 nodes. Rounds take turns if more demands wait, because a round must not outlast the
lead."""
FIRST_DEMANDS = 50
"""Number of demands that every round considers, because a job keeps its nodes only in rounds that
consider its demand. These are the first demands of the queue; demands that keep no nodes come last.
"""


@dataclass(frozen=True)
class Heads:
    """The first jobs of the queue and of each group, in the order of the queue."""

    rows: Sequence[GroupedJob]
    reasons: Mapping[str, str | None]
    """Stored reason why the jobs of a group wait, by group."""
    cut: frozenset[str]
    """For each group with jobs that `rows` lacks, the id of the group's last job in `rows`."""
    complete: int
    """Number of jobs at the front of `rows` that the round decides even behind a cut (`decide`)."""
    demands: Set[str]
    """All waiting demands, including demands without a job in `rows`."""
    next_turn: int | None
    """Index of the next round's first demand; None if this round considers all demands."""
    shares: Mapping[str, ProjectShare]
    """Shares by project name."""


def read_heads(
    connection: Connection,
    queue: SchedulingQueue,
    *,
    sizes: Mapping[str, int],
    quotas: Mapping[str, Quota],
    free_slots: int,
) -> Heads:
    """Update the queue, and return the first jobs of the queue and of each group.

    From the queue and from each group, one job more than the number of free slots suffices, because
    each placed job takes at least one slot. If the limits of this module omit jobs, later rounds
    place these jobs. `sizes` has the number of jobs by group, at least one group; `quotas` has the
    quotas by project.
    """
    queue.update(connection, sizes, quotas=quotas)
    first = min(free_slots + 1, FIRST_AT_ONCE)
    most = min(max(free_slots + 1, NOTIFIED), GROUP_AT_ONCE, max(1, HEADS_AT_ONCE // len(sizes)))
    users = {name: quota.users for name, quota in quotas.items() if quota.users is not None}
    shares = read_shares(connection, users)
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
    """Return the jobs and the holdings for placement, with tags if placement needs them.

    Placement needs tags if an attempt was backfilled on an estimate alone. The tags then decide to
    which jobs the attempt gives way.
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
    """Return the demands that a round considers, and the index of the next round's first demand."""
    if len(different) <= DEMANDS_AT_ONCE:
        return different, None
    first = {*sorted(different, key=queue.keeping_none.__contains__)[:FIRST_DEMANDS]}
    others = [shape for shape in different if shape not in first]
    begin, count = queue.turn % len(others), DEMANDS_AT_ONCE - FIRST_DEMANDS
    in_turn = [*others[begin:], *others[:begin]][:count]
    return {*first, *in_turn}, (begin + count) % len(others)


def note_turn(queue: SchedulingQueue, heads: Heads, decisions: Decisions) -> None:
    """Store in the queue the state that determines the next round's demands."""
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
    """Store changed reasons, one per group, and notify live views.

    `waiting` has the reasons by job id. Each of the `new` jobs, which entered the queue in this
    round, gets a notice.
    """
    waits: defaultdict[str, list[str]] = defaultdict(list)
    for row in heads.rows:
        if row.id in waiting:
            waits[row.group].append(row.id)
    # The group gets the reason of its first job, because later jobs may wait for a quota that the
    # first job does not exceed.
    reasons = {group: waiting[job_ids[0]] for group, job_ids in waits.items()}
    changed = {key: reason for key, reason in reasons.items() if reason != heads.reasons.get(key)}
    if not changed and not new:
        return
    notified = {job_id for group in changed for job_id in waits[group][:NOTIFIED]}
    with context.database.write() as connection:
        if changed:
            of_group = update(demands).where(demands.c.key == bindparam("group"))
            values = [{"group": key, "because": changed[key]} for key in sorted(changed)]
            connection.execute(of_group.values(reason=bindparam("because")), values)
        still = select(jobs.c.id, demands.c.reason).where(
            jobs.c.id.in_(notified | set(new)),
            jobs.c.state == JobState.QUEUED,
            demands.c.key == jobs.c.demand,
            demands.c.reason.is_not(None),
        )
        rows = connection.execute(still.order_by(jobs.c.id)).all()
        notices = [(Subject(row.id), WaitingNotice(reason=row.reason)) for row in rows]
        notify_all(context, connection, notices)

"""The scheduling queue: grouped jobs in order, kept in memory by the leader.

A round reads the changes since the last round. The leader itself lets jobs enter groups, and reads
all jobs of a project that gets its first quota or limit of a user, or loses its last one. So its
copy of a group has every job of the group. If the table has fewer jobs than the copy, jobs have
left the group.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar

from sqlalchemy import Connection, Table, Text, func, select, type_coerce

from server.cluster.placement.demand import QueuedJob, leave_time
from server.cluster.placement.quotas import Quota, UserQuotas
from server.core.database.engine import batches
from server.core.database.rows import TypedRow
from server.core.database.scheduler_tables import demands
from server.core.database.tables import jobs
from server.core.visibility.job_labels import label
from server.jobs.queue.groups import demand_of_shape, lasts_of
from server.jobs.queue.order import GROUPED, ProjectShare


@dataclass(frozen=True, slots=True)
class GroupedJob(TypedRow):
    """A job in a group."""

    table: ClassVar[Table] = jobs
    id: str
    name: str
    queued_at: Annotated[datetime, jobs.c.queued_at]
    priority: int
    project: str
    owner_id: str
    min_world_size: int | None
    lasts_seconds: float | None
    lasts_on: str | None
    lasts_on_name: str | None
    max_runtime_seconds: float | None
    leave_seconds: float | None
    preemptible: bool
    attempt: int
    pace_digest: str | None
    slots: Annotated[int, demands.c.slots]
    """Number of slots of the job, including slots on spare nodes."""
    group: Annotated[str, jobs.c.demand.label("group")]
    shape: Annotated[str, type_coerce(demands.c.shape, Text).label("shape")]
    """Demand of the job, as stored JSON text."""

    @property
    def queued(self) -> QueuedJob:
        """The job in the form that placement needs."""
        return QueuedJob(
            self.id,
            label(self.project, self.name),
            demand_of_shape(self.shape),
            lasts=lasts_of(self.lasts_seconds),
            lasts_on=self.lasts_on,
            lasts_on_name=self.lasts_on_name,
            bound=lasts_of(self.max_runtime_seconds),
            leaves_within=leave_time(self.leave_seconds),
            priority=self.priority,
            project=self.project,
            owner_id=self.owner_id,
            queued_at=self.queued_at,
            preemptible=self.preemptible,
        )


READ_AT_ONCE = 1000
"""Maximum number of values in the list of one query; SQLite allows about 32,000."""
_Place = tuple[int, int, datetime, str, GroupedJob]
"""Negated priority of a job, slots of earlier jobs of the project, time at which the job was
queued, id of the job, and the job."""
_Turn = tuple[int, float, datetime, str, GroupedJob, Sequence[_Place], ProjectShare, int]
"""Rank of a job in the queue (four fields), the job, the places of its project's jobs, the
project's share, and the index of the job in the places."""


class _Line:
    """The jobs of one project in order, each with the slots of the project's earlier jobs."""

    def __init__(self, rows: Iterable[GroupedJob], share: ProjectShare) -> None:
        """Sort the jobs; a job that cannot start within the limits counts with 0 slots."""
        largest, users = self.largest, self.users = share.largest, share.users
        of_users: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        self.all: list[_Place] = []
        self.by_group: defaultdict[str, list[_Place]] = defaultdict(list)
        ahead = 0
        for row in sorted(rows, key=lambda row: (-row.priority, row.queued_at, row.id)):
            place = (-row.priority, ahead, row.queued_at, row.id, row)
            self.all.append(place)
            self.by_group[row.group].append(place)
            if row.slots <= largest and (users is None or _has_room(row, users, of_users)):
                ahead += row.slots
        self.slots = ahead

    def slots_ahead(self, priority: int, queued_at: datetime | None, job_id: str) -> int:
        """Return the slots of the jobs ahead of a job; the job need not be in this line."""
        own = -priority, queued_at, job_id
        index = bisect_left(self.all, own, key=lambda place: (place[0], *place[2:4]))
        return self.all[index][1] if index < len(self.all) else self.slots


def _has_room(
    row: GroupedJob, users: UserQuotas, of_users: defaultdict[str, tuple[int, int]]
) -> bool:
    """Return whether a job fits into its owner's limits together with the owner's jobs ahead.

    `of_users` has the slots and the number of the jobs ahead, by owner; this job is added.
    """
    user = users.of(row.owner_id)
    if not user.could_hold(row.slots):
        return False
    slots, count = of_users[row.owner_id]
    of_users[row.owner_id] = slots + row.slots, count + 1
    return user.has_room(slots + row.slots, jobs=count + 1)


class SchedulingQueue:
    """The leader's copy of the grouped jobs, valid for one epoch."""

    def __init__(self) -> None:
        self.turn = 0
        """If rounds take turns: where the next round begins in the list of the demands outside of
        its first `FIRST_DEMANDS`."""
        self.keeping_none: set[str] = set()
        """If rounds take turns: demands that neither started a job nor kept nodes at their last
        turn.
        """
        self._entered: set[str] = set()
        self._jobs: dict[str, GroupedJob] = {}
        self._groups: defaultdict[str, set[str]] = defaultdict(set)
        self._projects: defaultdict[str, dict[str, GroupedJob]] = defaultdict(dict)
        self._lines: dict[str, _Line] = {}
        # The projects with separate groups, and whether each of their users has some.
        self._grouping: set[tuple[str, bool]] = set()

    def enter(self, job_ids: Iterable[str]) -> None:
        """Record jobs that have entered groups, so that the next `update` reads them."""
        self._entered.update(job_ids)

    def leave(self, job_ids: Iterable[str]) -> None:
        """Forget jobs that left their groups; `update` restores jobs that are still in a group."""
        for job_id in job_ids:
            row = self._jobs.pop(job_id, None)
            if row is None:
                continue
            self._lines.pop(row.project, None)
            self._groups[row.group].remove(job_id)
            if not self._groups[row.group]:
                del self._groups[row.group]
            del self._projects[row.project][job_id]
            if not self._projects[row.project]:
                del self._projects[row.project]

    def clear(self) -> None:
        """Forget all jobs, because it is unknown which jobs have entered groups."""
        self._entered.clear()
        self.leave(list(self._jobs))

    def update(
        self, connection: Connection, sizes: Mapping[str, int], *, quotas: Mapping[str, Quota]
    ) -> None:
        """Read the changes since the last update.

        `sizes` has the number of jobs by group, read after the last `enter`; `quotas` has the
        quotas by project.
        """
        grouping = {(name, quota.users is not None) for name, quota in quotas.items()}
        for project, _ in self._grouping ^ grouping:
            self.enter(self._projects.get(project, ()))
        self._grouping = grouping
        self._read(connection, self._entered)
        groups = sizes.keys() | self._groups.keys()
        changed = [group for group in groups if sizes.get(group, 0) != self.size(group)]
        known = {(job_id, group) for group in changed for job_id in self._groups.get(group, ())}
        present: set[tuple[str, str]] = set()
        for some in batches(changed, READ_AT_ONCE):
            query = select(jobs.c.id, jobs.c.demand).where(GROUPED, jobs.c.demand.in_(some))
            present |= {(row.id, row.demand) for row in connection.execute(query)}
        self.leave(job_id for job_id, _ in known - present)
        self._read(connection, [job_id for job_id, _ in present - known])
        self._entered.clear()  # last, so that after an error they are read again

    def size(self, group: str) -> int:
        """Return the number of jobs in a group."""
        return len(self._groups.get(group, ()))

    def first(
        self, shares: Mapping[str, ProjectShare], *, limit: int, of_group: int
    ) -> tuple[Sequence[GroupedJob], int]:
        """Return the first jobs of the queue and of each group, in the order of the queue.

        The result has the first `limit` jobs of the whole queue, and the first `of_group` jobs of
        each group. The second value is the number of jobs up to the first omitted job.
        """
        sharing = {project: shares.get(project, ProjectShare()) for project in self._projects}
        lines = [(self._line(project, share), share) for project, share in sharing.items()]
        turns = _turns([(line.all, share) for line, share in lines], limit)
        complete, here = len(turns), Counter(turn[4].group for turn in turns)
        lanes: dict[str, list[tuple[Sequence[_Place], ProjectShare]]] = {
            group: [] for group in self._groups if here[group] < min(of_group, self.size(group))
        }
        for line, share in lines:
            for group, places in line.by_group.items():
                if group in lanes:
                    lanes[group].append((places, share))
        for group, of_lines in lanes.items():
            turns += _turns(of_lines, of_group)[here[group] :]
        return [turn[4] for turn in sorted(turns)], complete

    def tag(
        self,
        project: str,
        share: ProjectShare,
        *,
        priority: int,
        queued_at: datetime | None,
        job_id: str,
        held: int = 0,
    ) -> float:
        """Return the tag of a waiting job, or the tag that a running job would have if it waited.

        `held` is the number of slots that the running job itself holds.
        """
        ahead = 0
        if project in self._projects:
            ahead = self._line(project, share).slots_ahead(priority, queued_at, job_id)
        return (share.held - held + ahead) / share.weight

    def _line(self, project: str, share: ProjectShare) -> _Line:
        line = self._lines.get(project)
        if line is None or line.largest != share.largest or line.users != share.users:
            line = self._lines[project] = _Line(self._projects[project].values(), share)
        return line

    def _read(self, connection: Connection, job_ids: Collection[str]) -> None:
        """Read the given jobs again; jobs that left their group keep their old values."""
        query = GroupedJob.select().join(demands, demands.c.key == jobs.c.demand).where(GROUPED)
        for some in batches([*job_ids], READ_AT_ONCE):
            rows = GroupedJob.all(connection, query.where(jobs.c.id.in_(some)))
            self.leave(row.id for row in rows)
            for row in rows:
                self._lines.pop(row.project, None)
                self._jobs[row.id] = self._projects[row.project][row.id] = row
                self._groups[row.group].add(row.id)


def group_sizes(connection: Connection) -> dict[str, int]:
    """Return the number of jobs by group; the query reads only an index."""
    size = func.count().label("size")
    grouped = select(jobs.c.demand, size).where(GROUPED).group_by(jobs.c.demand)
    return {row.demand: row.size for row in connection.execute(grouped)}


def _turns(lines: Iterable[tuple[Sequence[_Place], ProjectShare]], limit: int) -> list[_Turn]:
    """Return at most `limit` first turns of the projects' jobs, in the order of the queue.

    `lines` has the sorted places and the share of each project. A heap has the next turn of each
    project, because `heapq.merge` would need one generator per project, which costs more.
    """
    heap: list[_Turn] = [  # like `_turn` with index 0, but without a call per project
        (first[0], (share.held + first[1]) / share.weight, *first[2:], places, share, 0)
        for places, share in lines
        for first in places[:1]
    ]
    heapq.heapify(heap)  # by rank only, because ids differ
    turns: list[_Turn] = []
    while heap and len(turns) < limit:
        turns.append(heap[0])
        places, share, index = heap[0][5:]
        if index + 1 < len(places):
            heapq.heapreplace(heap, _turn(places, share, index + 1))
        else:
            heapq.heappop(heap)
    return turns


def _turn(places: Sequence[_Place], share: ProjectShare, index: int) -> _Turn:
    priority, ahead, queued_at, job_id, row = places[index]
    tag = (share.held + ahead) / share.weight
    return priority, tag, queued_at, job_id, row, places, share, index

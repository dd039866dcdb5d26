"""The scheduling queue: the jobs in groups and their order, kept in memory by the leader.

A round reads the changes since the last one. Jobs enter groups only through the leader. They change
groups when their project gets its first quota or loses its last one; the leader then reads all jobs
of the project. So its copy of a group lacks no job of that group. If the table counts as many jobs,
the copy is exact; if it counts fewer, some have left.
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
from server.core.database.engine import batches
from server.core.database.rows import TypedRow
from server.core.database.scheduler_tables import demands
from server.core.database.tables import jobs
from server.jobs.queue.groups import demand_of_shape, lasts_of
from server.jobs.queue.order import GROUPED, ProjectShare


@dataclass(frozen=True, slots=True)
class GroupedJob(TypedRow):
    """A job of a group."""

    table: ClassVar[Table] = jobs
    id: str
    name: str
    queued_at: datetime | None
    priority: int
    project: str
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
    """Its slots, those of its spare nodes included."""
    group: Annotated[str, jobs.c.demand.label("group")]
    shape: Annotated[str, type_coerce(demands.c.shape, Text).label("shape")]
    """Its demand, as stored."""

    @property
    def queued(self) -> QueuedJob:
        """The job as placement reads it."""
        return QueuedJob(
            self.id,
            self.name,
            demand_of_shape(self.shape),
            lasts=lasts_of(self.lasts_seconds),
            lasts_on=self.lasts_on,
            lasts_on_name=self.lasts_on_name,
            bound=lasts_of(self.max_runtime_seconds),
            leaves_within=leave_time(self.leave_seconds),
            priority=self.priority,
            project=self.project,
            queued_at=self.queued_at,
            preemptible=self.preemptible,
        )


READ_AT_ONCE = 1000
"""Most values that one query lists; SQLite allows some 32,000."""
_Place = tuple[int, int, datetime | None, str, GroupedJob]
"""The negated priority of a job; the slots counted ahead of it in its project; the time at which it
was queued; its id; and the job."""
_Turn = tuple[int, float, datetime | None, str, GroupedJob, Sequence[_Place], ProjectShare, int]
"""The rank of a job in the queue; the job; and the places of its project with the job's index."""


class _Line:
    """The jobs of one project by arrival, each with the slots that are counted ahead of it."""

    def __init__(self, rows: Iterable[GroupedJob], largest: float) -> None:
        """Sort the jobs; a job with more than `largest` slots counts as 0 slots."""
        self.largest = largest
        self.all: list[_Place] = []
        self.by_group: defaultdict[str, list[_Place]] = defaultdict(list)
        ahead = 0
        for row in sorted(rows, key=lambda row: (-row.priority, row.queued_at, row.id)):
            place = (-row.priority, ahead, row.queued_at, row.id, row)
            self.all.append(place)
            self.by_group[row.group].append(place)
            ahead += row.slots if row.slots <= largest else 0
        self.slots = ahead

    def slots_ahead(self, priority: int, queued_at: datetime | None, job_id: str) -> int:
        """Return the slots counted ahead of a job; the job need not be in this line."""
        own = -priority, queued_at, job_id
        index = bisect_left(self.all, own, key=lambda place: (place[0], *place[2:4]))
        return self.all[index][1] if index < len(self.all) else self.slots


class SchedulingQueue:
    """The jobs in groups, as the leader of one epoch knows them."""

    def __init__(self) -> None:
        self.turn = 0
        """Index of the next round's first demand behind the first ones, while rounds take turns."""
        self.keeping_none: set[str] = set()
        """Demands without a started job or kept nodes when such a round last considered them."""
        self._entered: set[str] = set()
        self._jobs: dict[str, GroupedJob] = {}
        self._groups: defaultdict[str, set[str]] = defaultdict(set)
        self._projects: defaultdict[str, dict[str, GroupedJob]] = defaultdict(dict)
        self._lines: dict[str, _Line] = {}
        self._with_quota: frozenset[str] = frozenset()

    def enter(self, job_ids: Iterable[str]) -> None:
        """Note jobs that have entered groups; the next `update` reads them."""
        self._entered.update(job_ids)

    def leave(self, job_ids: Iterable[str]) -> None:
        """Forget jobs that left their groups; `update` restores any that are still in a group."""
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
        """Forget all jobs, when it is unknown which jobs have entered groups."""
        self._entered.clear()
        self.leave(list(self._jobs))

    def update(
        self, connection: Connection, sizes: Mapping[str, int], *, with_quota: Collection[str]
    ) -> None:
        """Read the changes since the last update.

        Args:
            connection: a transaction.
            sizes: number of the jobs of each group, read after the last `enter`.
            with_quota: the projects that have a quota.
        """
        for project in self._with_quota.symmetric_difference(with_quota):
            self.enter(self._projects.get(project, ()))
        self._with_quota = frozenset(with_quota)
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
        self._entered.clear()  # last: after an error the next update reads them again

    def size(self, group: str) -> int:
        """Return the number of jobs of a group."""
        return len(self._groups.get(group, ()))

    def first(
        self, shares: Mapping[str, ProjectShare], *, limit: int, of_group: int
    ) -> tuple[Sequence[GroupedJob], int]:
        """Return the first jobs of the queue and of each group, in the order of the queue.

        Args:
            shares: held and largest slots of projects.
            limit: number of first jobs of the queue, regardless of their groups.
            of_group: number of first jobs of each group.

        Returns:
            The jobs, and how many of them form the head of the queue without a gap.
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
        """Return the tag of a waiting job, or of a running one as if it still waited.

        Args:
            project: name of its project.
            share: held and largest slots of the project.
            priority: its priority.
            queued_at: the time at which it was queued.
            job_id: its id.
            held: slots that it holds itself.
        """
        ahead = 0
        if project in self._projects:
            ahead = self._line(project, share).slots_ahead(priority, queued_at, job_id)
        return (share.held - held + ahead) / share.weight

    def _line(self, project: str, share: ProjectShare) -> _Line:
        line = self._lines.get(project)
        if line is None or line.largest != share.largest:
            line = self._lines[project] = _Line(self._projects[project].values(), share.largest)
        return line

    def _read(self, connection: Connection, job_ids: Collection[str]) -> None:
        """Read jobs again; jobs that are no longer in a group are not changed."""
        query = GroupedJob.select().join(demands, demands.c.key == jobs.c.demand).where(GROUPED)
        for some in batches([*job_ids], READ_AT_ONCE):
            rows = GroupedJob.all(connection, query.where(jobs.c.id.in_(some)))
            self.leave(row.id for row in rows)
            for row in rows:
                self._lines.pop(row.project, None)
                self._jobs[row.id] = self._projects[row.project][row.id] = row
                self._groups[row.group].add(row.id)


def group_sizes(connection: Connection) -> dict[str, int]:
    """Return the number of jobs of each group; only the index is read."""
    size = func.count().label("size")
    grouped = select(jobs.c.demand, size).where(GROUPED).group_by(jobs.c.demand)
    return {row.demand: row.size for row in connection.execute(grouped)}


def _turns(lines: Iterable[tuple[Sequence[_Place], ProjectShare]], limit: int) -> list[_Turn]:
    """Return the first turns of some projects' jobs, in the order of the queue.

    A heap has the next turn of each project. `heapq.merge` gives the same result, but its
    generators, one for each project, cost more than the few turns that most projects get.

    Args:
        lines: sorted places of each project's jobs, and the project's share.
        limit: most turns.
    """
    heap: list[_Turn] = [  # like `_turn` with index 0, without a call for each project
        (first[0], (share.held + first[1]) / share.weight, *first[2:], places, share, 0)
        for places, share in lines
        for first in places[:1]
    ]
    heapq.heapify(heap)  # by rank only: ids differ, so nothing after the id is compared
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

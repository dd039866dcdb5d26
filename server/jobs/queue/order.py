"""The order of the queue: priority, then the project with the fewest slots for its weight.

Within a priority, the next job belongs to the project with the fewest slots for its weight; jobs of
the project that are ahead count as if they held their slots. Of equal ones, the oldest is next. The
sort key is a tag: (slots held by the project + slots of its jobs ahead) / weight. The tags of a
project's jobs rise, so a sort by them gives the same order as repeated choices of the next job.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    Subquery,
    and_,
    case,
    func,
    literal,
    literal_column,
    or_,
    select,
)

from server.cluster.projects.queries import held_slots
from server.core.database.held import HELD_SLOTS, HOLDS
from server.core.database.scheduler_tables import demands, projects
from server.core.database.tables import jobs, nodes
from trainyard.protocol.states import JobState
from trainyard.spec.sections.resources import LOWEST_PRIORITY

WAITS = jobs.c.state == JobState.QUEUED
"""The condition of waiting jobs."""
GROUPED = WAITS & jobs.c.demand.is_not(None)
"""The condition of waiting jobs that the scheduler considers for slots."""
ARRIVAL = (jobs.c.priority.desc(), jobs.c.queued_at, jobs.c.id)
"""The order of the jobs of one project."""
_ONLINE = select(func.sum(nodes.c.slots)).where(nodes.c.offline_since.is_(None))
_PROJECTS = select(projects.c.name, projects.c.weight, projects.c.max_slots)
_LARGEST = (projects.c.max_slots, _ONLINE.scalar_subquery())
_CAN_START = and_(*(or_(most.is_(None), demands.c.slots <= most) for most in _LARGEST))
_COUNTED = case((_CAN_START, demands.c.slots), else_=0)
"""Slots that a job adds to the tags of later jobs of its project, spare nodes included; the query
joins its group. A job that cannot start adds none, or it would hold its project back behind all
others. Such a job is in no group, so it is not considered for slots, or it is larger than the
project's `max_slots` or than all online nodes."""
_COLUMNS = (
    jobs.c.id,
    jobs.c.priority,
    jobs.c.queued_at,
    jobs.c.demand,
)
TAG: ColumnElement[float] = literal_column("line.tag", Float)
"""The tag of a job, a column of `QueueOrder.line`."""

TOKEN = r"^[0-9]{3}[0-9a-f]{16}[0-9]{16}[0-7][0-9a-hjkmnp-tv-z]{25}$"
"""Priority above the lowest, tag as a hexadecimal double, time at which it was queued in
microseconds since 1970, and id."""
_LAST_ID = "z" * 26
"""Sorts after the id of every job."""
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class QueueKey:
    """The sort key of the queue: higher priorities, lower tags, earlier times, then ids."""

    priority: int
    tag: float
    """Slots of its project at its turn, divided by the weight; 0 while only one project waits."""
    queued_at: datetime
    id: str

    @classmethod
    def parse(cls, token: str) -> Self:
        """Return the key in a page token."""
        priority, tag, since, job_id = token[:3], token[3:19], token[19:35], token[35:]
        queued_at = _UNIX_EPOCH + timedelta(microseconds=int(since))
        (number,) = struct.unpack(">d", bytes.fromhex(tag))
        return cls(int(priority) + LOWEST_PRIORITY, number, queued_at, job_id)

    @property
    def token(self) -> str:
        """The key as a page token."""
        since = (self.queued_at - _UNIX_EPOCH) // timedelta(microseconds=1)
        tag = struct.pack(">d", self.tag).hex()
        return f"{self.priority - LOWEST_PRIORITY:03}{tag}{since:016}{self.id}"

    @property
    def rank(self) -> tuple[int, float, datetime, str]:
        """The key as a sortable value."""
        return -self.priority, self.tag, self.queued_at, self.id


class ProjectShare(NamedTuple):
    """The values of a project that the order uses; a round makes one for each project."""

    held: int = 0
    """Slots of its starting, running and stopping jobs."""
    weight: float = 1.0
    largest: float = math.inf
    """Most slots of a job that can start."""


@dataclass(frozen=True)
class QueueOrder:
    """The waiting jobs, in the order in which they get slots."""

    line: Subquery
    """Their ids and sort keys, under the name `line`; joined to `jobs` by the id."""
    is_fair: bool
    """Whether jobs of several projects wait."""

    @property
    def by(self) -> tuple[ColumnElement[Any], ...]:
        """The columns to sort by."""
        line = self.line.c
        return line.priority.desc(), line.tag, line.queued_at, line.id

    def first(self, limit: int, *condition: ColumnElement[bool]) -> QueueOrder:
        """Return the order of the first jobs that meet conditions; queries then read only these.

        Args:
            limit: most jobs.
            condition: conditions on columns of `line`.
        """
        chosen = select(self.line).where(*condition).order_by(*self.by).limit(limit)
        return replace(self, line=chosen.subquery("line"))

    def behind(self, key: QueueKey) -> ColumnElement[bool]:
        """Return the condition of the jobs behind a key."""
        line, tag = self.line.c, key.tag if self.is_fair else 0.0
        last = or_(
            line.queued_at > key.queued_at, and_(line.queued_at == key.queued_at, line.id > key.id)
        )
        later = or_(line.tag > tag, and_(line.tag == tag, last))
        return or_(line.priority < key.priority, and_(line.priority == key.priority, later))


def read_order(connection: Connection, *, candidate: str | None = None) -> QueueOrder:
    """Return the order of the queue now.

    While only one project has waiting jobs, they are in the order of arrival: the query reads only
    the index and sums up nothing.

    Args:
        connection: a transaction.
        candidate: the project of a job to compare with the waiting ones.
    """
    waiting = select(jobs.c.project).where(WAITS).distinct().limit(2)
    several = {*connection.scalars(waiting), *([candidate] if candidate else [])}
    if len(several) > 1:
        return QueueOrder(_fair_line(), is_fair=True)
    return QueueOrder(_arrival_line(), is_fair=False)


def read_shares(connection: Connection) -> Mapping[str, ProjectShare]:
    """Return the values of each project that the order uses, by name."""
    held, online = held_slots(connection), connection.scalar(_ONLINE)
    most = math.inf if online is None else online
    return {
        name: ProjectShare(
            held.get(name, 0), weight, most if max_slots is None else min(max_slots, most)
        )
        for name, weight, max_slots in connection.execute(_PROJECTS).all()
    }


def key_of_candidate(
    connection: Connection,
    order: QueueOrder,
    *,
    project: str,
    priority: int,
    now: datetime,
) -> QueueKey:
    """Return the key of a job of a project if it were queued now."""
    if not order.is_fair:
        return QueueKey(priority, 0.0, now, _LAST_ID)
    of_project = jobs.c.project == project
    held = select(func.coalesce(func.sum(HELD_SLOTS), 0)).where(HOLDS, of_project)
    ahead = (
        select(func.coalesce(func.sum(_COUNTED), 0))
        .select_from(jobs)
        .join(projects, projects.c.name == jobs.c.project)
        .join(demands, demands.c.key == jobs.c.demand)
        .where(GROUPED, of_project, jobs.c.priority >= priority)
    )
    weight = select(projects.c.weight).where(projects.c.name == project)
    in_turn = held.scalar_subquery() + ahead.scalar_subquery()
    tag = connection.scalar(select(in_turn / weight.scalar_subquery()))
    return QueueKey(priority, float(tag or 0.0), now, _LAST_ID)


def _arrival_line() -> Subquery:
    return select(*_COLUMNS, literal(0.0, Float).label("tag")).where(WAITS).subquery("line")


def _fair_line() -> Subquery:
    """Return the waiting jobs with their tags."""
    slots = func.sum(HELD_SLOTS).label("slots")
    held = select(jobs.c.project, slots).where(HOLDS).group_by(jobs.c.project).subquery("held")
    ahead = func.sum(_COUNTED).over(partition_by=jobs.c.project, order_by=ARRIVAL, rows=(None, -1))
    in_turn = func.coalesce(held.c.slots, 0) + func.coalesce(ahead, 0)
    tag = in_turn / func.coalesce(projects.c.weight, 1.0)
    return (
        select(*_COLUMNS, tag.label("tag"))
        .outerjoin(held, held.c.project == jobs.c.project)
        .outerjoin(projects, projects.c.name == jobs.c.project)
        .outerjoin(demands, demands.c.key == jobs.c.demand)
        .where(WAITS)
        .subquery("line")
    )

"""The order of the queue: by priority, then by slots held per project relative to its weight.

Within a priority, the next job belongs to the project with the fewest slots relative to its weight.
The project's earlier jobs in the queue count as if they already held their slots. If projects are
equal, the oldest job is next. The sort key is a tag: (slots held by the project + slots of its jobs
ahead) / weight. Tags rise along the jobs of a project, so a sort by tag gives the same order as
repeated choices of the next job.
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
    FromClause,
    Subquery,
    and_,
    case,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
)

from server.cluster.placement.quotas import UserQuotas
from server.cluster.projects.queries import LIMITS_USERS, held_slots
from server.core.database.held import HELD_SLOTS, HOLDS
from server.core.database.scheduler_tables import demands, projects
from server.core.database.tables import jobs, nodes
from server.core.people.member_tables import members
from server.core.subject import ADMIN_USER_ID
from trainyard.protocol.states import JobState
from trainyard.spec.sections.resources import LOWEST_PRIORITY

WAITS = jobs.c.state == JobState.QUEUED
"""SQL condition that a job waits."""
GROUPED = WAITS & jobs.c.demand.is_not(None)
"""SQL condition that a job waits and that the scheduler considers it for slots."""
ARRIVAL = (jobs.c.priority.desc(), jobs.c.queued_at, jobs.c.id)
"""Sort columns for the jobs of one project."""
_ONLINE = select(func.sum(nodes.c.slots)).where(nodes.c.offline_since.is_(None))
_LARGEST = (projects.c.max_slots, _ONLINE.scalar_subquery())
_CAN_START = and_(*(or_(most.is_(None), demands.c.slots <= most) for most in _LARGEST))
_COUNTED = case((_CAN_START, demands.c.slots), else_=0)
"""Number of slots, including spare nodes, that a job adds to the tags of later jobs of its project.
The query joins the group of the job. A job that cannot start adds no slots, because otherwise its
project would wait behind all other projects. A job cannot start if it has no group, or if it has
more slots than the project's `max_slots` or than all online nodes together. If the project limits
its users, jobs beyond a limit of their owner add no slots either (`_within_limits`).
"""
_COLUMNS = (jobs.c.id, jobs.c.priority, jobs.c.queued_at, jobs.c.demand)
TAG: ColumnElement[float] = literal_column("line.tag", Float)
"""The tag of a job, a column of `QueueOrder.line`."""

TOKEN = r"^[0-9]{3}[0-9a-f]{16}[0-9]{16}[0-7][0-9a-hjkmnp-tv-z]{25}$"
"""Pattern of a `QueueKey.token`: priority relative to the lowest, tag as a hexadecimal double,
queue time in microseconds since 1970, and id."""
SEALED = r"^gAAAA[A-Za-z0-9_-]{80,600}={0,2}$"
"""Pattern of the encrypted token of a caller who does not see all jobs: a key shows id, priority
and queue time of its job, and the position behind a chosen key would show those of hidden jobs."""
_LAST_ID = "z" * 26
"""Text that sorts after the id of every job."""
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class QueueKey:
    """The sort key of the queue: higher priority, lower tag, earlier time, then id."""

    priority: int
    tag: float
    """Tag of the job; 0 while only one project has waiting jobs."""
    queued_at: datetime
    id: str

    @classmethod
    def parse(cls, token: str) -> Self:
        """Return the key that a page token encodes."""
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
    """Values of a project that determine the order of the queue."""

    held: int = 0
    """Number of slots that the project's jobs hold, including slots that queued jobs keep."""
    weight: float = 1.0
    largest: float = math.inf
    """Maximum number of slots of a job that can start."""
    users: UserQuotas | None = None
    """Limits of the project's users; None if no user has a limit."""


@dataclass(frozen=True)
class QueueOrder:
    """The waiting jobs, in the order in which they get slots."""

    line: Subquery
    """Subquery `line` with ids and sort keys of the waiting jobs; queries join it to `jobs` by
    id."""
    is_fair: bool
    """Whether jobs of more than one project wait."""
    limits_users: bool = False
    """Whether a project limits its users, so that jobs beyond these limits add to no tag."""

    @property
    def by(self) -> tuple[ColumnElement[Any], ...]:
        """Sort columns of the queue."""
        line = self.line.c
        return line.priority.desc(), line.tag, line.queued_at, line.id

    def first(self, limit: int, *condition: ColumnElement[bool]) -> QueueOrder:
        """Return the order of the first `limit` jobs that meet conditions on columns of `line`."""
        chosen = select(self.line).where(*condition).order_by(*self.by).limit(limit)
        return replace(self, line=chosen.subquery("line"))

    def behind(self, key: QueueKey) -> ColumnElement[bool]:
        """Return the SQL condition that a job is behind a key."""
        line, tag = self.line.c, key.tag if self.is_fair else 0.0
        last = or_(
            line.queued_at > key.queued_at, and_(line.queued_at == key.queued_at, line.id > key.id)
        )
        later = or_(line.tag > tag, and_(line.tag == tag, last))
        return or_(line.priority < key.priority, and_(line.priority == key.priority, later))


def read_order(connection: Connection, *, candidate: str | None = None) -> QueueOrder:
    """Return the order of the queue now.

    While only one project has waiting jobs, these are in the order of arrival, so the query reads
    only the index and computes no sums. `candidate` is the project of a job that is compared with
    the waiting jobs.
    """
    waiting = select(jobs.c.project).where(WAITS).distinct().limit(2)
    if len({*connection.scalars(waiting), candidate} - {None}) > 1:
        limits_users = bool(connection.scalar(select(exists().where(LIMITS_USERS))))
        return QueueOrder(
            _fair_line(limits_users=limits_users), is_fair=True, limits_users=limits_users
        )
    by_arrival = select(*_COLUMNS, literal(0.0, Float).label("tag")).where(WAITS)
    return QueueOrder(by_arrival.subquery("line"), is_fair=False)


def read_shares(
    connection: Connection, users: Mapping[str, UserQuotas]
) -> Mapping[str, ProjectShare]:
    """Return the values that determine the order, by project name.

    `users` has the limits of users by project; projects without such limits are omitted.
    """
    held, online = held_slots(connection), connection.scalar(_ONLINE)
    most = math.inf if online is None else online
    rows = connection.execute(select(projects.c.name, projects.c.weight, projects.c.max_slots))
    return {
        name: ProjectShare(
            held.get(name, 0),
            weight,
            most if max_slots is None else min(max_slots, most),
            users.get(name),
        )
        for name, weight, max_slots in rows
    }


def key_of_candidate(
    connection: Connection, order: QueueOrder, *, project: str, priority: int, now: datetime
) -> QueueKey:
    """Return the key that a job of a project would have if it were queued now."""
    if not order.is_fair:
        return QueueKey(priority, 0.0, now, _LAST_ID)
    of_project = jobs.c.project == project
    held = select(func.coalesce(func.sum(HELD_SLOTS), 0)).where(HOLDS, of_project)
    within, counted = _counted(limits_users=order.limits_users)
    ahead = (
        select(func.coalesce(func.sum(counted), 0))
        .select_from(within)
        .where(GROUPED, of_project, jobs.c.priority >= priority)
    )
    weight = select(projects.c.weight).where(projects.c.name == project)
    in_turn = held.scalar_subquery() + ahead.scalar_subquery()
    tag = connection.scalar(select(in_turn / weight.scalar_subquery()))
    return QueueKey(priority, float(tag or 0.0), now, _LAST_ID)


def _fair_line(*, limits_users: bool) -> Subquery:
    """Return the waiting jobs with their tags."""
    slots = func.sum(HELD_SLOTS).label("slots")
    held = select(jobs.c.project, slots).where(HOLDS).group_by(jobs.c.project).subquery("held")
    tables, counted = _counted(limits_users=limits_users)
    ahead = func.sum(counted).over(partition_by=jobs.c.project, order_by=ARRIVAL, rows=(None, -1))
    in_turn = func.coalesce(held.c.slots, 0) + func.coalesce(ahead, 0)
    tag = in_turn / func.coalesce(projects.c.weight, 1.0)
    return (
        select(*_COLUMNS, tag.label("tag"))
        .select_from(tables.outerjoin(held, held.c.project == jobs.c.project))
        .where(WAITS)
        .subquery("line")
    )


def _counted(*, limits_users: bool) -> tuple[FromClause, ColumnElement[int]]:
    """Return jobs with projects and groups, and the slots that a job adds to the tags behind it."""
    tables = jobs.outerjoin(projects, projects.c.name == jobs.c.project)
    tables = tables.outerjoin(demands, demands.c.key == jobs.c.demand)
    if not limits_users:
        return tables, _COUNTED
    within = _within_limits()
    return tables.outerjoin(within, within.c.id == jobs.c.id), func.coalesce(within.c.slots, 0)


def _within_limits() -> Subquery:
    """Return the slots that each grouped job adds to the tags behind it, if users have limits.

    A job adds slots if it would start before the jobs of its owner reach a limit in its project.
    """
    owner = jobs.c.project, jobs.c.owner_id
    columns = func.sum(HELD_SLOTS).label("slots"), func.count().label("running")
    use = select(*owner, *columns).where(HOLDS).group_by(*owner).subquery("use")
    has_limits = jobs.c.owner_id != ADMIN_USER_ID
    own = members.c.max_slots, members.c.max_running
    of_each = projects.c.member_max_slots, projects.c.member_max_running
    max_slots, max_running = (
        case((has_limits, func.coalesce(*limits))) for limits in zip(own, of_each, strict=True)
    )
    can_start = and_(_CAN_START, or_(max_slots.is_(None), demands.c.slots <= max_slots))
    slots, number = (case((can_start, each), else_=0) for each in (demands.c.slots, 1))

    def up_to(value: ColumnElement[int]) -> ColumnElement[int]:
        return func.sum(value).over(partition_by=owner, order_by=ARRIVAL, rows=(None, 0))

    each = (
        select(
            jobs.c.id,
            slots.label("slots"),
            (max_slots - func.coalesce(use.c.slots, 0) - up_to(slots)).label("slots_left"),
            (max_running - func.coalesce(use.c.running, 0) - up_to(number)).label("jobs_left"),
        )
        .join(projects, projects.c.name == jobs.c.project)
        .join(demands, demands.c.key == jobs.c.demand)
        .outerjoin(use, and_(use.c.project == owner[0], use.c.owner_id == owner[1]))
        .outerjoin(members, and_(members.c.project == owner[0], members.c.user_id == owner[1]))
        .where(GROUPED)
        .subquery("each")
    )
    lefts = each.c.slots_left, each.c.jobs_left
    fits = and_(*(or_(left.is_(None), left >= 0) for left in lefts))
    return select(each.c.id, each.c.slots).where(fits).subquery("within")

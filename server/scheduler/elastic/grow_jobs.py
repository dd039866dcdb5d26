"""Grows running elastic jobs onto slots that no other job needs (docs/lifecycle-sizes.md, 52)."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, partial
from statistics import median
from typing import Annotated, ClassVar, TypeVar

from sqlalchemy import Connection, Table, Text, or_, select, type_coerce

from server.cluster.nodes.capacity import read_offers
from server.cluster.placement.demand import Demand, Offer
from server.cluster.placement.fit import NodeGroup, could_hold, fits, groups, unit_on
from server.cluster.placement.quotas import Quota
from server.cluster.projects.quotas import read_quotas
from server.cluster.projects.usage import ReadUsage, read_usage
from server.core.context import Context
from server.core.database.held import HELD_SLOTS
from server.core.database.rows import Job, TypedRow
from server.core.database.scheduler_tables import demands
from server.core.database.tables import attempt_nodes, attempts, checkpoints, jobs
from server.core.errors import ConflictError, InvalidRequestError, UnreadableError
from server.core.isolation import Isolation
from server.core.people.unix_accounts import account_of
from server.core.subject import ADMIN_USER_ID, SCHEDULER
from server.jobs.jobs.checks import known_slots
from server.jobs.jobs.resume import resume
from server.jobs.queue.groups import (
    GROUPED_AT_ONCE,
    demand_of,
    demand_of_new,
    demand_of_shape,
)
from server.jobs.queue.heads import DEMANDS_AT_ONCE
from server.jobs.queue.order import ARRIVAL
from server.jobs.queue.queries import NewJob
from server.scheduler.elastic.jobs import chosen_by_a_person, record_change, size_range_of
from server.scheduler.elastic.sizes import fastest, is_worth_its_cost, search_best_size
from trainyard.protocol.rest.jobs import Progress
from trainyard.protocol.states import AttemptState, DesiredState, JobState
from trainyard.spec.layout import Layout

logger = logging.getLogger(__name__)

Row = TypeVar("Row")

JOBS_A_RUN = 20
"""Number of jobs in one batch of a `Rotation`."""
LAST_ATTEMPTS = 5
"""Number of newest attempts whose start-up times estimate the cost of a restart."""
SOON_QUEUED = timedelta(minutes=15)
"""Time within which every queued job that is not in a pause gets a group. A job that has waited
longer for a group cannot start."""


@dataclass(frozen=True, slots=True)
class GrowingJob(TypedRow):
    """A running job below its largest size, with an attempt that has run long enough to grow."""

    table: ClassVar[Table] = jobs
    id: str
    project: str
    owner_id: str
    world_size: int
    held_slots: Annotated[int, HELD_SLOTS.label("held_slots")]
    progress: Progress
    attempt_id: Annotated[str, attempts.c.id.label("attempt_id")]


class Rotation:
    """Returns successive batches of jobs, so that each job gets its turn."""

    def __init__(self) -> None:
        self._turn = 0

    def next(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the next batch of rows; the next call starts after this batch."""
        turn = self._turn % max(len(rows), 1)
        self._turn = turn + JOBS_A_RUN
        return [*rows[turn:], *rows[:turn]][:JOBS_A_RUN]


@dataclass(frozen=True)
class WaitingDemand:
    """The demand of a waiting job, or of a group of waiting jobs."""

    demand: Demand
    project: str
    owner_id: str = ADMIN_USER_ID
    """Owner of the job; of a group in a project that limits no user, any user."""


@dataclass(frozen=True)
class Room:
    """The slots onto which running jobs may grow."""

    offers: Sequence[Offer]
    """The nodes, with only the free slots that no waiting job could use."""
    quotas: Mapping[str, Quota]
    """Quotas by project; projects without quotas and limits are omitted."""
    closed: Set[tuple[str, str | None]]
    """Projects with users whose jobs do not grow; None stands for all users."""

    def left(self, project: str, owner_id: str) -> float:
        """Return the number of further slots that jobs of a user in a project may hold."""
        quota = self.quotas.get(project, Quota())
        left = min(quota.left, quota.of_user(owner_id).left)
        is_closed = not self.closed.isdisjoint({(project, None), (project, owner_id)})
        return min(left, 0) if is_closed else left

    def without(self, node: str, *, project: str, owner_id: str, slots: int) -> Room:
        """Return the remaining room after a job of a user has taken more slots on a node."""
        quotas = {
            name: quota.with_more(owner_id, slots) if name == project else quota
            for name, quota in self.quotas.items()
        }
        offers = [offer for offer in self.offers if offer.node != node]
        return replace(self, offers=offers, quotas=quotas)


class ElasticGrower:
    """Grows running jobs one at a time; the next job grows after the previous one has its slots."""

    def __init__(self, context: Context, usage: ReadUsage = read_usage) -> None:
        self._context = context
        self._usage = usage
        self._rotation = Rotation()
        self._isolation = Isolation(context.clock.monotonic)

    def run(self) -> Generator[None, None, int]:
        """Order one job to grow if the gain is worth the cost; return the number of orders.

        A batch of jobs is tried in turn until one job grows. The remaining jobs are then skipped,
        because they were read before the change.
        """
        now, left_out = self._context.now(), self._isolation.left_out()
        with self._context.database.read() as connection:
            rows = [row for row in self._able(connection, now) if row.id not in left_out]
            room = read_room(connection, now, self._usage) if rows else None
        if room is None or not any(offer.free for offer in room.offers):
            return 0
        for row in self._rotation.next(rows):
            with self._isolation.turn(row.id, f"the growth of job {row.id}"):
                try:
                    if (yield from self._grow(row, room)):
                        return 1
                except (ConflictError, InvalidRequestError, UnreadableError) as error:
                    logger.warning("job %s does not grow: %s", row.id, error)
            yield
        return 0

    def _able(self, connection: Connection, now: datetime) -> Sequence[GrowingJob]:
        """Return the jobs that may grow, sorted by priority."""
        newest = (attempts.c.job_id == jobs.c.id) & (attempts.c.number == jobs.c.attempt)
        old = now - timedelta(seconds=self._context.settings.grow_after_seconds)
        able = (
            jobs.c.state == JobState.RUNNING,
            jobs.c.desired == DesiredState.RUN,
            jobs.c.world_size < jobs.c.max_world_size,
            attempts.c.state == AttemptState.RUNNING,
            attempts.c.started_at <= old,
        )
        query = GrowingJob.select().join(attempts, newest).where(*able)
        return GrowingJob.all(connection, query.order_by(jobs.c.priority.desc(), jobs.c.id))

    def _grow(self, row: GrowingJob, room: Room) -> Generator[None, None, bool]:
        """Order a job to grow if the gain is worth the cost; return whether the order was given."""
        seconds_left = row.progress.seconds_left
        if seconds_left is None:
            return False
        with self._context.database.read() as connection:
            job = Job.one_or_none(connection, Job.select().where(jobs.c.id == row.id))
            if job is None:
                return False
            baseline = chosen_by_a_person(job)
            slots = known_slots(connection)
            account = account_of(connection, job.owner_id)
            room = _with_own(connection, row.attempt_id, room)
            restart_seconds = _restart_seconds(connection, row.id)

        def fits_in(room: Room, layout: Layout) -> bool:
            demand = demand_of(
                job.spec, baseline.overrides, layout, bound=job.storage, account=account
            )
            within = demand.slots - row.held_slots <= room.left(row.project, row.owner_id)
            return within and fits(demand, room.offers)

        free = sum(len(offer.free) for offer in room.offers)
        high = size_range_of(baseline)[1]
        left = room.left(row.project, row.owner_id)
        most = int(min(high, free, row.world_size + left))
        sizes = range(row.world_size + 1, most + 1)
        size = yield from search_best_size(
            baseline, sizes, fits=partial(fits_in, room), slots=slots
        )
        present = fastest(baseline, row.world_size, slots=slots)
        if size is None or present is None:
            return False
        if not is_worth_its_cost(
            seconds_left=seconds_left,
            speed=present.speed,
            new_speed=size.speed,
            restart_seconds=restart_seconds,
        ):
            return False
        with self._context.database.read() as connection:  # the search may have taken seconds
            now_left = read_room(connection, self._context.now(), self._usage)
            if now_left is None:
                return False
            now_left = _with_own(connection, row.attempt_id, now_left)
        if not fits_in(now_left, size.layout):
            return False
        count = size.world_size - row.world_size
        reason = f"{count} slot{'' if count == 1 else 's'} came free"
        note = partial(record_change, self._context, reason=reason)
        running = row.attempt_id
        resume(self._context, row.id, size.request, actor=SCHEDULER, running=running, note=note)
        return True


def read_room(connection: Connection, now: datetime, usage: ReadUsage) -> Room | None:
    """Return the room for growth; None while the needs of other jobs are unknown.

    The needs are unknown while a newly queued job has no group, while a job leaves its slots to
    continue elsewhere, and if more than `DEMANDS_AT_ONCE` demands wait. For a job in a pause, the
    need is the demand of its pending launch.
    """
    waits = jobs.c.state == JobState.QUEUED
    young = or_(jobs.c.queued_at.is_(None), jobs.c.queued_at > now - SOON_QUEUED)
    due = or_(jobs.c.not_before.is_(None), jobs.c.not_before <= now)
    outside = waits & jobs.c.demand.is_(None) & young & due
    goes_on = or_(jobs.c.pending.is_not(None), jobs.c.desired == DesiredState.RUN)
    leaves = (jobs.c.state == JobState.STOPPING) & goes_on
    if connection.execute(select(jobs.c.id).where(or_(outside, leaves)).limit(1)).first():
        return None
    quotas = read_quotas(connection, now, usage=usage)
    grouped = select(jobs.c.demand, jobs.c.project).where(waits, jobs.c.demand.is_not(None))
    # One project per group suffices, because projects that share a group have no quota.
    projects = {row.demand: row.project for row in connection.execute(grouped.distinct())}
    limited = [name for name, quota in quotas.items() if quota.users is not None]
    owners: dict[str, str] = {}  # of the groups of such projects; each group has one owner
    if limited:
        of_limited = select(jobs.c.demand, jobs.c.owner_id).where(jobs.c.project.in_(limited))
        owned = of_limited.where(waits, jobs.c.demand.is_not(None)).distinct()
        owners = {row.demand: row.owner_id for row in connection.execute(owned)}
    shapes = connection.execute(
        select(demands.c.key, type_coerce(demands.c.shape, Text).label("shape")).where(
            demands.c.key.in_(grouped.with_only_columns(jobs.c.demand))
        )
    )
    waiting = [
        WaitingDemand(
            demand_of_shape(row.shape), projects[row.key], owners.get(row.key, ADMIN_USER_ID)
        )
        for row in shapes
        if row.key in projects
    ]
    waiting += _paused(connection, now)
    if len({each.demand for each in waiting}) > DEMANDS_AT_ONCE:
        return None  # the match of so many demands would take too long
    return room_among(waiting, read_offers(connection), quotas)


def _paused(connection: Connection, now: datetime) -> list[WaitingDemand]:
    """Return the demands of newly queued jobs in a pause, at most `GROUPED_AT_ONCE`."""
    paused = NewJob.select().where(
        jobs.c.state == JobState.QUEUED,
        jobs.c.demand.is_(None),
        jobs.c.not_before > now,
        jobs.c.queued_at > now - SOON_QUEUED,
    )
    found: list[WaitingDemand] = []
    for row in NewJob.all(connection, paused.order_by(*ARRIVAL).limit(GROUPED_AT_ONCE)):
        try:
            found.append(WaitingDemand(demand_of_new(row), row.project, row.owner_id))
        except UnreadableError:
            continue  # the job cannot start; its reason has the error
    return found


def room_among(
    waiting: Iterable[WaitingDemand], offers: Sequence[Offer], quotas: Mapping[str, Quota]
) -> Room:
    """Return the room for growth while other jobs wait.

    Nodes that could hold a waiting job are kept for the job if its project's quota and its owner's
    limits have room. If such nodes exist and the owner has `max_slots`, the owner's remaining slots
    are kept for the job, too. Then no job of the owner grows in this project. The same holds for
    the project's `max_slots`, unless the job waits for a limit of its owner.

    Args:
        waiting: the demands of waiting jobs.
        offers: the nodes, with their free slots.
        quotas: quotas by project; projects without quotas and limits are omitted.
    """

    @cache
    def able(demand: Demand) -> frozenset[str]:
        return frozenset(
            offer.node
            for group in groups(demand, offers)
            if could_hold(demand, NodeGroup(group, unit_on(demand, group)))
            for offer in group
        )

    needed: set[str] = set()
    closed: set[tuple[str, str | None]] = {
        (project, None) for project, quota in quotas.items() if quota.used_up is not None
    }
    for each in waiting:
        project, slots = each.project, each.demand.slots
        quota = quotas.get(project, Quota())
        user = quota.of_user(each.owner_id)
        if quota.used_up is not None or not (quota.could_hold(slots) and user.could_hold(slots)):
            continue  # the job does not start
        nodes = able(each.demand)
        if nodes and user.max_slots is not None:
            closed.add((project, each.owner_id))
        if not user.has_room(slots):
            continue
        if nodes and quota.max_slots is not None:
            closed.add((project, None))
        if quota.has_room(slots):
            needed |= nodes
    unneeded = [replace(offer, free=()) if offer.node in needed else offer for offer in offers]
    return Room(unneeded, quotas, closed)


def _with_own(connection: Connection, attempt_id: str, room: Room) -> Room:
    """Return the room plus an attempt's own slots, which a resize of the attempt frees."""
    shares = select(attempt_nodes.c.node, attempt_nodes.c.slots).where(
        attempt_nodes.c.attempt_id == attempt_id
    )
    own = {row.node: row.slots for row in connection.execute(shares)}
    offers = [
        replace(offer, free=tuple(sorted({*offer.free, *own[offer.node]})))
        if offer.node in own
        else offer
        for offer in room.offers
    ]
    return replace(room, offers=offers)


def _restart_seconds(connection: Connection, job_id: str) -> float:
    """Return the cost of a resize in seconds: the duration of a save and of a start-up."""
    started = select(attempts.c.created_at, attempts.c.started_at).where(
        attempts.c.job_id == job_id, attempts.c.started_at.is_not(None)
    )
    rows = connection.execute(started.order_by(attempts.c.number.desc()).limit(LAST_ATTEMPTS)).all()
    seconds: list[float] = [(row.started_at - row.created_at).total_seconds() for row in rows]
    saves = select(checkpoints.c.save_seconds).where(checkpoints.c.job_id == job_id)
    last = connection.scalar(saves.order_by(checkpoints.c.created_at.desc()).limit(1))
    return median(seconds) + (last or 0.0)

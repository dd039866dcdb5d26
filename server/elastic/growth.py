"""Running elastic jobs grow onto slots that no other job needs (docs/lifecycle.md, 52)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from statistics import median
from typing import Annotated, ClassVar

from sqlalchemy import Connection, Table, or_, select

from server.context import Context
from server.database.rows import Job, TypedRow
from server.database.tables import attempt_nodes, attempts, checkpoints, demands, jobs
from server.elastic.jobs import (
    chosen_by_a_person,
    demand_on,
    record_change,
    size_range_of,
)
from server.elastic.sizes import Size, best_size, fastest, is_worth_its_cost
from server.errors import ConflictError, InvalidRequestError, UnreadableError
from server.jobs.checks import known_slots
from server.jobs.resume import resume
from server.nodes.capacity import read_offers
from server.placement.demand import Demand, Offer
from server.placement.fit import could_hold, fits, groups, unit_on
from server.queue.groups import demand_of_shape
from server.subject import SCHEDULER
from trainyard.protocol.rest.jobs import Progress
from trainyard.protocol.states import AttemptState, DesiredState, JobState

logger = logging.getLogger(__name__)

LOOK_EVERY = timedelta(seconds=5)
"""Pause between two looks: a look parses the spec of each job that may grow."""
LOOKED_AT_ONCE = 20
"""Jobs of one look; the next look begins behind them."""
LAST_ATTEMPTS = 5
"""Attempts whose start-up gives the cost of a restart."""
SOON_QUEUED = timedelta(minutes=15)
"""Jobs outside of a group wait for the end of a pause; those that wait longer cannot start."""


@dataclass(frozen=True, slots=True)
class GrowingJob(TypedRow):
    """A running job below its largest size, whose attempt is old enough."""

    table: ClassVar[Table] = jobs
    id: str
    world_size: int
    progress: Progress
    attempt_id: Annotated[str, attempts.c.id.label("attempt_id")]


class Growth:
    """Resizes running jobs, at most one a round: the next one sees the slots that it left."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._looked_at: datetime | None = None
        self._turn = 0

    def run(self) -> int:
        """Order the growth of a job where it is worth its cost; return the number of jobs."""
        now = self._context.now()
        if self._looked_at is not None and timedelta() <= now - self._looked_at < LOOK_EVERY:
            return 0
        self._looked_at = now
        with self._context.database.read() as connection:
            rows = _able(self._context, connection, now)
            if not rows:
                return 0
            needed = _needed(connection, now)
            present = read_offers(connection)
        if needed is None:
            return 0
        offers = _unneeded(present, needed)
        if not any(offer.free for offer in offers):
            return 0
        turn = self._turn % len(rows)
        self._turn = turn + LOOKED_AT_ONCE
        for row in [*rows[turn:], *rows[:turn]][:LOOKED_AT_ONCE]:
            try:
                size = self._size_for(row, offers)
                if size is not None:
                    slots = size.world_size - row.world_size
                    free = f"{slots} slot{'' if slots == 1 else 's'} came free"
                    note = partial(record_change, self._context, reason=free)
                    resume(self._context, row.id, size.request, actor=SCHEDULER, note=note)
                    return 1
            except (ConflictError, InvalidRequestError, UnreadableError) as error:
                logger.warning("job %s does not grow: %s", row.id, error)
        return 0

    def _size_for(self, row: GrowingJob, unneeded: Sequence[Offer]) -> Size | None:
        """Return the size to which a job grows; None where it stays as it is."""
        seconds_left = row.progress.seconds_left
        if seconds_left is None:
            return None
        with self._context.database.read() as connection:
            job = Job.one(connection, Job.select().where(jobs.c.id == row.id))
            baseline = chosen_by_a_person(connection, job)
            slots = known_slots(connection)
            offers = _with_own(connection, row.attempt_id, unneeded)
            restart_seconds = _restart_seconds(connection, row.id)
        _, high = size_range_of(baseline)
        free = sum(len(offer.free) for offer in offers)
        size = best_size(
            baseline,
            range(row.world_size + 1, min(high, free) + 1),
            fits=lambda layout: fits(demand_on(job, baseline, layout), offers),
            slots=slots,
        )
        present = fastest(baseline, row.world_size, slots=slots)
        if size is None or present is None:
            return None
        worth = is_worth_its_cost(
            seconds_left=seconds_left,
            speed=present.speed,
            new_speed=size.speed,
            restart_seconds=restart_seconds,
        )
        return size if worth else None


def _able(context: Context, connection: Connection, now: datetime) -> Sequence[GrowingJob]:
    """Return the jobs that may grow, by priority."""
    since = now - timedelta(seconds=context.settings.grow_after_seconds)
    return GrowingJob.all(
        connection,
        GrowingJob.select()
        .join(attempts, (attempts.c.job_id == jobs.c.id) & (attempts.c.number == jobs.c.attempt))
        .where(
            jobs.c.state == JobState.RUNNING,
            jobs.c.desired == DesiredState.RUN,
            jobs.c.world_size < jobs.c.max_world_size,
            attempts.c.state == AttemptState.RUNNING,
            attempts.c.started_at <= since,
        )
        .order_by(jobs.c.priority.desc(), jobs.c.id),
    )


def _needed(connection: Connection, now: datetime) -> list[Demand] | None:
    """Return what waiting jobs need; None while one of them has no group yet."""
    waits = jobs.c.state == JobState.QUEUED
    young = or_(jobs.c.queued_at.is_(None), jobs.c.queued_at > now - SOON_QUEUED)
    outside = select(jobs.c.id).where(waits, jobs.c.demand.is_(None), young).limit(1)
    if connection.execute(outside).first() is not None:
        return None
    grouped = select(jobs.c.demand).where(waits, jobs.c.demand.is_not(None))
    shapes = connection.scalars(select(demands.c.shape).where(demands.c.key.in_(grouped)))
    return [demand_of_shape(shape) for shape in shapes]


def _unneeded(offers: Sequence[Offer], needed: Collection[Demand]) -> list[Offer]:
    """Return the nodes with those of their free slots that no waiting job could use."""
    wanted = {
        offer.node
        for demand in needed
        for group in groups(demand, offers)
        if could_hold(demand, group, unit=unit_on(demand, group))
        for offer in group
    }
    return [replace(offer, free=()) if offer.node in wanted else offer for offer in offers]


def _with_own(connection: Connection, attempt_id: str, offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers with the slots of an attempt, which its end will free."""
    shares = select(attempt_nodes.c.node, attempt_nodes.c.slots).where(
        attempt_nodes.c.attempt_id == attempt_id
    )
    own = {row.node: row.slots for row in connection.execute(shares)}
    return [
        replace(offer, free=tuple(sorted({*offer.free, *own[offer.node]})))
        if offer.node in own
        else offer
        for offer in offers
    ]


def _restart_seconds(connection: Connection, job_id: str) -> float:
    """Return the time that a resize of a job costs: its last save, and the usual start-up."""
    started = select(attempts.c.created_at, attempts.c.started_at).where(
        attempts.c.job_id == job_id, attempts.c.started_at.is_not(None)
    )
    rows = connection.execute(started.order_by(attempts.c.number.desc()).limit(LAST_ATTEMPTS)).all()
    seconds: list[float] = [(row.started_at - row.created_at).total_seconds() for row in rows]
    saves = select(checkpoints.c.save_seconds).where(checkpoints.c.job_id == job_id)
    last = connection.scalar(saves.order_by(checkpoints.c.created_at.desc()).limit(1))
    return median(seconds) + (last or 0.0)

"""Elastic jobs that wait take the size that fits now (docs/lifecycle.md, 50)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar

from sqlalchemy import Connection, Table, update

from server.context import Context
from server.database.rows import Job, TypedRow
from server.database.tables import jobs
from server.elastic.jobs import (
    chosen_by_a_person,
    newest_attempt,
    on_layout,
    record_change,
    size_range_of,
)
from server.elastic.sizes import Size, best_size
from server.errors import UnreadableError
from server.jobs.checks import known_slots
from server.lifecycle import lock_job
from server.nodes.capacity import read_offers
from server.placement.decide import decide
from server.placement.demand import Offer
from server.placement.quotas import Quota
from server.projects.quotas import read_quotas
from server.projects.usage import ReadUsage, read_usage
from server.queue.groups import Heads, group_sizes, read_heads
from server.queue.order import read_order
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.protocol.states import AttemptCause, JobState
from trainyard.run.failures import FailureReason
from trainyard.spec.layout import Layout

logger = logging.getLogger(__name__)

FITTED_AT_ONCE = 8
"""Jobs that one round tries in other sizes, the first in the queue; each try is a placement."""


@dataclass(frozen=True, slots=True)
class WaitingElasticJob(TypedRow):
    """An elastic job that waits for slots in its group."""

    table: ClassVar[Table] = jobs
    id: str
    queued_at: datetime | None
    min_world_size: int | None
    world_size: int


class SizeFitter:
    """Gives waiting elastic jobs the size that fits, after each round of placement."""

    def __init__(self, context: Context, usage: ReadUsage = read_usage) -> None:
        self._context = context
        self._usage = usage
        # Nothing fitted; nothing will while jobs and offers are the same.
        self._hopeless: tuple[list[WaitingElasticJob], list[Offer]] | None = None

    def run(self) -> int:
        """Change the pending launches of jobs that fit in another size; return their number."""
        context = self._context
        waits = (jobs.c.state == JobState.QUEUED) & jobs.c.demand.is_not(None)
        elastic = WaitingElasticJob.select().where(waits, jobs.c.min_world_size.is_not(None))
        with context.database.read() as connection:
            order = read_order(connection)
            in_order = elastic.join(order.line, order.line.c.id == jobs.c.id).order_by(*order.by)
            rows = list(WaitingElasticJob.all(connection, in_order.limit(FITTED_AT_ONCE)))
            if not rows:
                return 0
            offers = read_offers(connection)
            free = sum(len(offer.free) for offer in offers)
            if (rows, offers) == self._hopeless:
                return 0
            groups = len(group_sizes(connection))
            heads = read_heads(connection, groups=groups, free_slots=free)
            quotas = read_quotas(connection, context.now(), usage=self._usage)
        changed = 0
        for row in rows:
            if row.min_world_size is None or row.min_world_size > free:
                continue
            try:
                changed += self._fit(row, heads, offers, quotas, free=free)
            except UnreadableError as error:  # the round of placement stores it as the reason
                logger.error("%s", error)
            if changed:
                break  # the others see the queue after its placement
        self._hopeless = None if changed else (rows, offers)
        return changed

    def _fit(
        self,
        row: WaitingElasticJob,
        heads: Heads,
        offers: list[Offer],
        quotas: Mapping[str, Quota],
        *,
        free: int,
    ) -> bool:
        with self._context.database.read() as connection:
            job = Job.one(connection, Job.select().where(jobs.c.id == row.id))
            if job.pending is None:
                return False
            baseline = chosen_by_a_person(connection, job)
            slots = known_slots(connection)
        low, high = size_range_of(baseline)
        most = max(min(baseline.layout.world_size, high), row.world_size)
        size = best_size(
            baseline,
            range(low, min(most, free) + 1),
            fits=_placeable(row.id, heads, offers, quotas),
            slots=slots,
        )
        if size is None or size.world_size == row.world_size:
            return False
        with self._context.database.write() as connection:
            lock_job(connection, row.id)
            present = Job.one(connection, Job.select().where(jobs.c.id == row.id))
            if (present.queued_at, present.stored_pending) != (job.queued_at, job.stored_pending):
                return False  # it started, or a person changed it
            self._rewrite(connection, present, size)
        return True

    def _rewrite(self, connection: Connection, job: Job, size: Size) -> None:
        pending = job.pending
        assert pending is not None, "a queued job has a launch"
        changed = pending.model_copy(
            update={"overrides": size.next.overrides, "layout": size.layout}
        )
        # Out of its group: the next round places it by what it needs now.
        values = {"pending": changed, "layout": str(size.layout), "world_size": size.world_size}
        of_job = jobs.c.id == job.id
        connection.execute(update(jobs).where(of_job).values(**values, demand=None, reason=None))
        reason = _why(connection, job, pending, size.layout)
        record_change(self._context, connection, job, size.layout, reason=reason)


def _placeable(
    job_id: str, heads: Heads, offers: list[Offer], quotas: Mapping[str, Quota]
) -> Callable[[Layout], bool]:
    """Return whether the next round would place a job on a layout, behind the jobs before it."""
    queue = [row.queued for row in heads.rows]

    def placed(layout: Layout) -> bool:
        tried = [
            replace(each, demand=on_layout(each.demand, layout)) if each.id == job_id else each
            for each in queue
        ]
        return job_id in decide(tried, offers, cut=heads.cut, quotas=quotas).placed

    return placed


def _why(connection: Connection, job: Job, pending: PendingLaunch, layout: Layout) -> str:
    """Return why a waiting job changes its size: the loss that it follows, else what is free."""
    attempt = newest_attempt(connection, job)
    failure = attempt.failure if attempt is not None else None
    lost = {FailureReason.NODE_LOST, FailureReason.PREEMPTED}
    if pending.cause == AttemptCause.RETRY and failure is not None and failure.reason in lost:
        return failure.message
    return f"{layout.slots_in_words} are free, {job.world_size} are not"

"""Changes waiting elastic jobs to a size that fits now (docs/lifecycle-sizes.md, 50)."""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Mapping
from dataclasses import replace

from sqlalchemy import Connection, func, select, update

from server.cluster.nodes.capacity import read_offers
from server.cluster.placement.decide import Turns
from server.cluster.placement.demand import Offer, QueuedJob
from server.cluster.placement.quotas import Quota
from server.cluster.projects.quotas import read_quotas
from server.cluster.projects.usage import ReadUsage, read_usage
from server.core.context import Context
from server.core.database.rows import Job
from server.core.database.tables import jobs
from server.core.errors import UnreadableError
from server.core.isolation import Isolation
from server.core.lifecycle import lock_job
from server.jobs.attempts.launch import newest_launch
from server.jobs.jobs.checks import known_slots
from server.jobs.queue.heads import read_heads
from server.jobs.queue.order import GROUPED
from server.jobs.queue.scheduling_queue import GroupedJob, SchedulingQueue, group_sizes
from server.scheduler.elastic.jobs import chosen_by_a_person, record_change, size_range_of
from server.scheduler.elastic.sizes import Size, search_best_size
from trainyard.protocol.states import AttemptCause
from trainyard.run.failures import FailureReason
from trainyard.spec.layout import Layout

logger = logging.getLogger(__name__)

TRY_AGAIN_SECONDS = 10.0
"""Pause, in seconds, before sizes are tried again for the same groups, offers and quotas. The
result may differ, because the order of the queue may have changed."""
_LOST = {FailureReason.NODE_LOST, FailureReason.PREEMPTED}


class SizeFitter:
    """Gives waiting elastic jobs a size that fits, after each placement round."""

    def __init__(
        self, context: Context, queue: SchedulingQueue, usage: ReadUsage = read_usage
    ) -> None:
        self._context = context
        self._queue = queue
        self._usage = usage
        self._isolation = Isolation(context.clock.monotonic)
        self.is_complete = False
        """Whether the last run was completed: it changed a job's size, or tried all jobs."""
        # The groups, offers, quotas and turn of the demands with which no size fitted.
        self._hopeless: tuple[dict[str, int], list[Offer], Mapping[str, Quota], int] | None = None
        self._hopeless_until = -math.inf  # monotonic

    def run(self) -> Generator[None, None, int]:
        """Change the size of one waiting job so that the job fits; return the number of changes.

        Elastic jobs are tried in the order of the queue until one job fits. The other jobs wait
        until this job is placed.
        """
        self.is_complete = False
        changed = yield from self._try_jobs()
        self.is_complete = True
        return changed

    def _try_jobs(self) -> Generator[None, None, int]:
        now = self._context.now()
        with self._context.database.read() as connection:
            least = connection.scalar(select(func.min(jobs.c.min_world_size)).where(GROUPED))
            if least is None:
                return 0
            offers = read_offers(connection)
            free = sum(len(offer.free) for offer in offers)
            if least > free:
                return 0
            sizes = group_sizes(connection)
            quotas = read_quotas(connection, now, usage=self._usage)
            state = (sizes, offers, quotas, self._queue.turn)
            clock = self._context.clock.monotonic
            if state == self._hopeless and clock() < self._hopeless_until:
                return 0
            heads = read_heads(connection, self._queue, sizes=sizes, quotas=quotas, free_slots=free)
        turns = Turns(offers, quotas=quotas)
        queue = [row.queued for row in heads.rows]
        left_out = self._isolation.left_out()
        elastic = {
            row.id: row
            for row in heads.rows
            if row.min_world_size is not None and row.id not in left_out
        }
        for queued in turns.take(queue, cut=heads.cut, complete=heads.complete):
            row = elastic.get(queued.id)
            if row is not None and (row.min_world_size or 0) <= turns.free_slots:
                with self._isolation.turn(row.id, f"the size of job {row.id}"):
                    try:
                        if (yield from self._fit(row, queued, turns)):
                            return 1
                    except UnreadableError as error:  # the placement round stores it as reason
                        logger.error("%s", error)
            yield
        self._hopeless, self._hopeless_until = state, clock() + TRY_AGAIN_SECONDS
        return 0

    def _fit(self, row: GroupedJob, queued: QueuedJob, turns: Turns) -> Generator[None, None, bool]:
        """Give a job the best size that fits now; return whether the size changed."""
        with self._context.database.read() as connection:
            job = Job.one_or_none(connection, Job.select().where(jobs.c.id == row.id))
            if job is None or job.queued_at != row.queued_at or job.pending is None:
                return False  # the job has started, or was deleted
            baseline = chosen_by_a_person(job)
            slots = known_slots(connection)

        def fits(layout: Layout) -> bool:
            size, units = layout.world_size, layout.node_units
            demand = replace(queued.demand, world_size=size, units=units)
            return turns.would_place(replace(queued, demand=demand))

        low, high = size_range_of(baseline)
        most = max(min(baseline.layout.world_size, high), job.world_size)
        size = yield from search_best_size(
            baseline, range(low, min(most, turns.free_slots) + 1), fits=fits, slots=slots
        )
        if size is None or size.world_size == job.world_size:
            return False
        with self._context.database.write() as connection:
            lock_job(connection, row.id)
            present = Job.one(connection, Job.select().where(jobs.c.id == row.id))
            if (present.queued_at, present.stored_pending) != (job.queued_at, job.stored_pending):
                return False  # the job started, or a person changed it
            self._rewrite(connection, present, size)
        return True

    def _rewrite(self, connection: Connection, job: Job, size: Size) -> None:
        pending, layout = job.pending, size.layout
        assert pending is not None, "a queued job has a launch"
        values = {
            "pending": pending.model_copy(
                update={"overrides": size.next.overrides, "layout": layout}
            ),
            "layout": job.spec.layout_name(layout),
            "world_size": size.world_size,
            "demand": None,  # so that the next round places the job by its new demand
            "reason": None,
        }
        connection.execute(update(jobs).where(jobs.c.id == job.id).values(values))
        reason = f"{layout.slots_in_words} are free, {job.world_size} are not"
        if pending.cause == AttemptCause.RETRY:
            failure = newest_launch(connection, job.id).attempt.failure
            if failure is not None and failure.reason in _LOST:
                reason = failure.message
        record_change(self._context, connection, job=job, layout=layout, reason=reason)

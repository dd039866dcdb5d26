"""The placement round, which reads the queue, decides, writes attempts and sends messages."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice

from server.cluster.nodes.capacity import CapacityReader
from server.cluster.placement.decide import decide
from server.cluster.placement.demand import LEAVES_WITHIN, OVERDUE_AFTER, Holding, Offer
from server.cluster.placement.quotas import Quota
from server.cluster.projects.quotas import read_quotas
from server.cluster.projects.usage import ReadUsage, read_usage
from server.core.context import Context
from server.core.database.engine import batches
from server.core.isolation import Isolation, ends_task
from server.jobs.queue.groups import enter_groups, learn_durations, put_off
from server.jobs.queue.heads import explain, note_turn, read_heads, tagged
from server.jobs.queue.scheduling_queue import GroupedJob, SchedulingQueue, group_sizes
from server.scheduler.rounds.dispatch import Dispatcher
from server.scheduler.rounds.hold_back_jobs import held_back
from server.scheduler.rounds.placements import Placement, place
from server.scheduler.rounds.victims import order_to_leave
from trainyard.protocol.worker_messages import LaunchMessage

logger = logging.getLogger(__name__)

DECIDE_AGAIN_SECONDS = 10.0
"""A round decides again after this time, in seconds, even if nothing else has changed."""
LEARNED_AT_ONCE = 100
"""Maximum number of jobs in one search for durations in newly ended attempts."""
LEARN_SINCE = timedelta(seconds=30)
"""A search covers attempts that ended within this time. Searches overlap, because an end is
committed after its timestamp.
"""
PLACED_TOGETHER = 50
"""Maximum number of jobs placed in one transaction. The transaction locks the rows of these jobs,
and takes a few milliseconds per job."""


class Placer:
    """Places queued jobs, round by round."""

    def __init__(
        self, context: Context, dispatcher: Dispatcher, usage: ReadUsage = read_usage
    ) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._usage = usage
        self._capacity = CapacityReader()
        self.queue = SchedulingQueue()
        self.over_quota: Collection[str] = ()
        """Ids of jobs that wait for a quota, from the last round that decided."""
        # If rounds considered all demands and placed nothing, the next round cannot place anything
        # either while groups, offers and quotas stay equal. This holds only for a while, because
        # expected ends change and attempts may be preempted.
        self._state: tuple[dict[str, int], list[Offer], Mapping[str, Quota]] | None = None
        self._considered: set[str] = set()
        self._hopeless_until = -math.inf  # monotonic
        self._waiting: Sequence[GroupedJob] = ()
        self._learned: Sequence[str] = ()
        self._victims: Mapping[str, Sequence[Holding]] = {}
        self._isolation = Isolation(context.clock.monotonic)
        self._soon_since: Mapping[str, datetime] = {}

    def run(self) -> int:
        """Place jobs, store why the others wait, and return the number of jobs chosen for slots."""
        context = self._context
        try:
            new, now = enter_groups(context, without=held_back(context)), context.now()
        except Exception:
            self.queue.clear()  # unknown which jobs have entered groups
            raise
        learned, self._learned = self._learned, ()
        self.queue.enter([*new, *learned])
        with context.database.read() as connection:
            sizes = group_sizes(connection)
            if not sizes:
                return 0
            capacity = self._capacity.read(connection, now)
            offers = capacity.offers
            quotas = read_quotas(connection, now, usage=self._usage)
            state = (sizes, offers, quotas)
            if state != self._state:
                self._state, self._considered, self._hopeless_until = state, set(), -math.inf
            is_hopeless = context.clock.monotonic() < self._hopeless_until
            if is_hopeless and not (new or learned):
                return 0
            free = sum(len(offer.free) for offer in offers)
            heads = read_heads(connection, self.queue, sizes=sizes, quotas=quotas, free_slots=free)
        queue, holdings = tagged(self.queue, heads, holdings=self._doubted(capacity.holdings, now))
        settings = context.settings
        after = timedelta(seconds=settings.preempt_after_seconds) if settings.preemption else None
        decisions = decide(
            queue,
            offers,
            holdings=holdings,
            now=now,
            preempt_after=after,
            cut=heads.cut,
            complete=heads.complete,
            quotas=quotas,
        )
        placements = [
            Placement(
                row.id,
                row.queued_at,
                decisions.placed[row.id],
                backfilled_before=decisions.backfilled.get(row.id),
                expected_end_at=decisions.expected_ends.get(row.id),
                gives_way=row.id in decisions.giving_way,
            )
            for row in heads.rows
            if row.id in decisions.placed
        ]
        for together in batches(placements, PLACED_TOGETHER):
            # Sent after the commit, so that a claim finds its attempt.
            for message in self._place(together, offers):
                self._dispatcher.send(message)
        self.queue.leave(decisions.placed)
        explain(context, heads, decisions.waiting, new=new)
        self._victims, self.over_quota = decisions.victims, decisions.over_quota
        note_turn(self.queue, heads, decisions)
        self._waiting = [row for row in heads.rows if row.id in decisions.waiting]
        self._considered.update(row.shape for row in heads.rows)
        if decisions.placed:
            self._state = None
        elif self._considered >= heads.demands:
            self._considered = set()
            self._hopeless_until = context.clock.monotonic() + DECIDE_AGAIN_SECONDS
        return len(decisions.placed)

    def learn(self) -> None:
        """Store expected durations of waiting jobs; the next round reads the changed jobs again.

        Only jobs that never ran and have no duration are considered, at most `LEARNED_AT_ONCE` of
        them, and only if an attempt with the same training part ended within `LEARN_SINCE`. The
        duration itself also comes from older attempts.
        """
        unpaced = (
            (row.id, row.pace_digest)
            for row in self._waiting
            if row.pace_digest is not None and row.lasts_seconds is None and not row.attempt
        )
        waiting = dict(islice(unpaced, LEARNED_AT_ONCE))
        since = self._context.now() - LEARN_SINCE
        self._learned = learn_durations(self._context, waiting, since=since)

    def _place(
        self, placements: Sequence[Placement], offers: Sequence[Offer]
    ) -> list[LaunchMessage]:
        """Place jobs together or, if that fails, one by one, so that one job does not block others.

        A job that fails alone leaves the queue for a while, so that it does not block slots.

        Raises:
            LeadLostError, DBAPIError: the lead or the connection is lost.
        """
        try:
            return place(self._context, placements, offers)
        except Exception as error:
            if ends_task(error):
                raise
            if len(placements) == 1:
                (failed,) = placements
                logger.exception("job %s could not be placed", failed.job_id)
                why = f"its placement failed ({type(error).__name__}): see the scheduler's log"
                with self._context.database.write() as connection:
                    put_off(self._context, connection, [(failed.job_id, failed.queued_at, why)])
                return []
            logger.warning("%d jobs are placed one by one", len(placements), exc_info=True)
        return [message for each in placements for message in self._place([each], offers)]

    def _doubted(self, holdings: Sequence[Holding], now: datetime) -> Sequence[Holding]:
        """Return the holdings; expected ends that have been close for too long become unknown.

        An attempt that is expected to end soon is not preempted. If the expected end is wrong, such
        an attempt could keep its slots forever. The expected end depends on the pace that ranks
        report, and the last save may hang. An attempt with an order to leave is not changed,
        because the time of the order already limits how long the attempt counts as leaving.
        """
        close = {
            each.attempt_id
            for each in holdings
            if each.first_step_at is not None  # not ordered to leave so far
            and each.ends_at is not None
            and each.ends_at <= now + LEAVES_WITHIN
        }
        if not close and not self._soon_since:
            return holdings
        # The first time is kept even if the expected end moves away and back. After the clock was
        # set back, the first time is the present time.
        self._soon_since = {
            each.attempt_id: min(self._soon_since.get(each.attempt_id, now), now)
            for each in holdings
            if each.attempt_id in close or each.attempt_id in self._soon_since
        }

        def is_doubted(each: Holding) -> bool:
            # A holding that overtook jobs on an estimate must not delay these jobs if the estimate
            # is wrong.
            allowed = OVERDUE_AFTER if each.overtook_at is None else LEAVES_WITHIN
            return each.attempt_id in close and self._soon_since[each.attempt_id] <= now - allowed

        return [replace(each, ends_at=None) if is_doubted(each) else each for each in holdings]

    def preempt(self) -> int:
        """Order attempts to leave as the round decided; return the number of orders.

        The caller first changes waiting elastic jobs to sizes that fit, because a job that fits
        needs no victims.
        """
        victims, self._victims = self._victims, {}
        ordered = 0
        left_out = self._isolation.left_out()
        for job_id, holdings in victims.items():
            if job_id not in left_out:
                with self._isolation.turn(job_id, f"the preemption for job {job_id}"):
                    ordered += order_to_leave(self._context, job_id, holdings)
        return ordered

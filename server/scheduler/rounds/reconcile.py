"""The reconciler for expired leases, lost nodes and unclaimed launches (docs/lifecycle.md, 8-16).

Time counts only while an API server is up to accept reports. So a silence starts at the last report
or heartbeat, or at the start of the servers' uptime, whichever is later.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, ClassVar

from sqlalchemy import Table, func, select, tuple_, update

from server.cluster.nodes.capacity import IS_SERVED, POLLS
from server.cluster.nodes.workers import HEARTBEATS_MISSED
from server.cluster.projects.quotas import read_quotas
from server.cluster.projects.usage import ReadUsage, read_usage
from server.core.context import Context
from server.core.database.column_types import StoredRecord
from server.core.database.rows import TypedRow
from server.core.database.slot_tables import HOLDS_SLOTS
from server.core.database.tables import attempt_nodes, attempts, jobs, nodes
from server.core.errors import UnreadableError
from server.core.events.store import NewEvent, append_event
from server.core.isolation import Isolation, Pauses
from server.core.leases import NODE_LEASES, SKEW, ServerUptime
from server.core.lifecycle import lock_job
from server.core.liveness import server_uptime
from server.core.subject import SCHEDULER, Subject
from server.jobs.attempts.finish import end_nodes, lose_node
from server.jobs.attempts.retry_policy import NodeEnd
from server.scheduler.elastic.jobs import can_continue
from server.scheduler.rounds.dispatch import EXPIRES_SECONDS, Dispatcher
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.rest.event_data import Unreachable
from trainyard.protocol.rest.nodes import NodeOffline
from trainyard.protocol.states import AttemptNodeState, AttemptOutcome
from trainyard.protocol.worker_messages import LaunchMessage
from trainyard.run.failures import Failure, FailureReason, Remedy
from trainyard.spec.job import JobSpec
from trainyard.spec.sections.retry import RetrySection

logger = logging.getLogger(__name__)

LONGEST_RESEND_PAUSE = timedelta(seconds=EXPIRES_SECONDS)
"""Longest pause between two messages for a launch; by then the first message has expired."""
TRY_WITHOUT_EVERY = timedelta(seconds=5)
"""Pause between two checks whether a job fits without its silent nodes. A check is costly, because
it tries all sizes of an elastic job."""


@dataclass(frozen=True, slots=True)
class SilentShare(TypedRow):
    """A claimed share with a lease that may have run out."""

    table: ClassVar[Table] = attempt_nodes
    attempt_id: str
    node: str
    heard_at: Annotated[datetime, NODE_LEASES.heard_at]
    unreachable_since: datetime | None
    lost_at: datetime | None
    job_id: Annotated[str, attempts.c.job_id]
    number: Annotated[int, attempts.c.number]
    overrides: Annotated[StoredRecord[Overrides], attempts.c.overrides]
    spec: Annotated[StoredRecord[JobSpec], jobs.c.spec]


@dataclass(frozen=True, slots=True)
class UnclaimedShare(TypedRow):
    """A share that its node has not claimed."""

    table: ClassVar[Table] = attempt_nodes
    attempt_id: str
    node: str
    sent_at: Annotated[datetime, func.coalesce(attempt_nodes.c.sent_at, attempts.c.created_at)]
    polls: Annotated[bool, nodes.c.inbox == POLLS]
    is_served: Annotated[bool, IS_SERVED]
    job_id: Annotated[str, attempts.c.job_id]
    created_at: Annotated[datetime, attempts.c.created_at]


class Reconciler:
    """Compares rows with reports and heartbeats, and repairs the differences, round by round."""

    def __init__(
        self, context: Context, dispatcher: Dispatcher, usage: ReadUsage = read_usage
    ) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._usage = usage
        self._isolation = Isolation(context.clock.monotonic)
        self._fits_nowhere = Pauses(context.clock.monotonic, pause=TRY_WITHOUT_EVERY)  # by attempt

    def run(self) -> None:
        """Run one round, or do nothing while no API server is up."""
        now, settings = self._context.now(), self._context.settings
        share, attempt = attempt_nodes.c, attempts.c
        with self._context.database.read() as connection:
            uptime = server_uptime(connection, now)
            if uptime is None:
                return
            silent = SilentShare.all(
                connection,
                SilentShare.select()
                .join(attempts, attempt.id == share.attempt_id)
                .join(jobs, jobs.c.id == attempt.job_id)
                .where(NODE_LEASES.expired(uptime, seconds=settings.lease_seconds)),
            )
            unclaimed = UnclaimedShare.all(
                connection,
                UnclaimedShare.select()
                .join(attempts, attempt.id == share.attempt_id)
                .join(nodes, nodes.c.name == share.node)
                .where(share.state == AttemptNodeState.PLACED),
            )
            heartbeats = HEARTBEATS_MISSED * settings.heartbeat_seconds
            offline = connection.scalars(
                select(nodes.c.name).where(
                    nodes.c.offline_since.is_(None),
                    uptime.is_silent(nodes.c.heartbeat_at, seconds=heartbeats),
                )
            ).all()
        if offline:
            self._mark_offline(offline)
        left_out = self._isolation.left_out()
        for found in silent:
            if found.attempt_id not in left_out:
                with self._isolation.turn(found.attempt_id, f"attempt {found.attempt_id}"):
                    self._expire(found, uptime)
        late = self._late(unclaimed, uptime)
        for attempt_id in dict.fromkeys(found.attempt_id for found in late):
            if attempt_id not in left_out:
                with self._isolation.turn(attempt_id, f"attempt {attempt_id}"):
                    self._give_up(attempt_id, [s for s in late if s.attempt_id == attempt_id])
        self._send_again([found for found in unclaimed if found not in late], uptime)

    def _late(
        self, unclaimed: Sequence[UnclaimedShare], uptime: ServerUptime
    ) -> list[UnclaimedShare]:
        """Return the shares that were not claimed in time.

        The time counts only while an API server is up. If the node does not poll, the broker must
        accept messages, too.
        """
        accepts_since = self._dispatcher.up_since
        claim_by = uptime.now - timedelta(seconds=self._context.settings.claim_seconds)
        latest = uptime.now + SKEW  # later times were stored before a clock was set back
        late = []
        for share in unclaimed:
            reachable_since = uptime.up_since if share.polls else accepts_since
            if reachable_since is not None:
                began = (at for at in (share.created_at, reachable_since) if at <= latest)
                if max([uptime.up_since, *began]) <= claim_by:
                    late.append(share)
        return late

    def _mark_offline(self, names: Sequence[str]) -> None:
        context = self._context
        gone = nodes.c.name.in_(names) & nodes.c.offline_since.is_(None)
        with context.database.write() as connection:
            # Every statement that locks several nodes locks them by name, so that no two deadlock.
            locked = select(nodes.c.name).where(gone).order_by(nodes.c.name)
            marked = connection.scalars(locked.with_for_update(key_share=True)).all()
            marks = update(nodes).where(nodes.c.name.in_(marked))
            connection.execute(marks.values(offline_since=context.now()))
            for name in marked:
                message, subject = f"the worker of {name} is silent", Subject(node=name)
                event = NewEvent(NodeOffline(), SCHEDULER, subject, message)
                append_event(context, connection, event)

    def _expire(self, share: SilentShare, uptime: ServerUptime) -> None:
        """Mark a silent share as unreachable, and end it after the job's `node_lost_after_seconds`.

        An elastic job, or a job with spare nodes, continues without the share after
        `shrink_after_seconds`.
        """
        silence = uptime.silence(share.heard_at)
        spec = _effective_spec(share)
        retry = RetrySection() if spec is None else spec.retry
        if silence >= timedelta(seconds=retry.node_lost_after_seconds):
            self._lose(share, silence, ends=True)
        elif share.unreachable_since is None:
            self._mark_unreachable(share, silence)
        elif spec is not None and share.lost_at is None and spec.resources.continues_without_node:
            limit = spec.resources.shrink_after_seconds or 0.0  # the lease has expired already
            if silence >= timedelta(seconds=limit) and self._can_continue(share):
                self._lose(share, silence, ends=False)

    def _mark_unreachable(self, share: SilentShare, silence: timedelta) -> None:
        context = self._context
        with context.database.write() as connection:
            lock_job(connection, share.job_id)
            marks = update(attempt_nodes).where(NODE_LEASES.unheard_since(share))
            if connection.execute(marks.values(unreachable_since=context.now())).rowcount == 1:
                subject = Subject(share.job_id, attempt=share.number, node=share.node)
                message = f"{_silence_of(share, silence)}; its ranks may still run"
                event = NewEvent(Unreachable(), SCHEDULER, subject, message)
                append_event(context, connection, event)

    def _can_continue(self, share: SilentShare) -> bool:
        """Check whether the job fits without its silent nodes; return False if no check is due."""
        if self._fits_nowhere.is_left_out(share.attempt_id):
            return False
        with self._context.database.read() as connection:
            quotas = read_quotas(connection, self._context.now(), usage=self._usage)
            found = can_continue(connection, share.job_id, share.attempt_id, quotas)
        if not found:
            self._fits_nowhere.begin(share.attempt_id)
        return found

    def _lose(self, share: SilentShare, silence: timedelta, *, ends: bool) -> None:
        """End a silent share if `ends`; else mark the share as lost, so that its job continues."""
        context, attempt_id = self._context, share.attempt_id
        reason, message = FailureReason.NODE_LOST, _silence_of(share, silence)
        failure = Failure(reason=reason, message=message, node=share.node)
        with context.database.write() as connection:
            lock_job(connection, share.job_id)
            silent = select(attempt_nodes.c.lost_at).where(NODE_LEASES.unheard_since(share))
            row = connection.execute(silent).one_or_none()
            if row is None or (row.lost_at is not None and not ends):
                return  # a report or the end came between the read and the lock
            if ends:
                end = NodeEnd(share.node, AttemptOutcome.FAILED, failure)
                end_nodes(context, connection, attempt_id, [end], actor=SCHEDULER)
                return
            lose_node(context, connection, attempt_id=attempt_id, failure=failure, actor=SCHEDULER)

    def _give_up(self, attempt_id: str, shares: Sequence[UnclaimedShare]) -> None:
        """End the shares of an attempt that were not claimed in time."""
        context = self._context
        with context.database.write() as connection:
            lock_job(connection, shares[0].job_id)
            still = connection.scalars(
                select(attempt_nodes.c.node).where(
                    attempt_nodes.c.attempt_id == attempt_id,
                    attempt_nodes.c.node.in_([share.node for share in shares]),
                    attempt_nodes.c.state == AttemptNodeState.PLACED,
                )
            ).all()
            seconds = context.settings.claim_seconds
            ends = [
                NodeEnd(share.node, AttemptOutcome.FAILED, _unclaimed(share, seconds))
                for share in shares
                if share.node in still
            ]
            if ends:
                end_nodes(context, connection, attempt_id, ends, actor=SCHEDULER)

    def _send_again(self, unclaimed: Sequence[UnclaimedShare], uptime: ServerUptime) -> None:
        now = uptime.now
        waiting = [
            share
            for share in unclaimed
            if not share.polls
            and not timedelta() <= now - share.sent_at < self._pause(share, uptime)
        ]
        if not waiting:
            return
        reached = self._reached({share.node for share in waiting}, now)
        due = [
            (share.attempt_id, share.node)
            for share in waiting
            if not self._may_still_arrive(share, reached.get(share.node), now)
        ]
        if not due:
            return
        key = tuple_(attempt_nodes.c.attempt_id, attempt_nodes.c.node)
        with self._context.database.write() as connection:
            marked = connection.execute(
                update(attempt_nodes)
                .where(key.in_(due), attempt_nodes.c.state == AttemptNodeState.PLACED)
                .values(sent_at=now)
                .returning(attempt_nodes.c.attempt_id, attempt_nodes.c.node)
            ).all()
        for row in marked:
            self._dispatcher.send(LaunchMessage(attempt_id=row.attempt_id, node=row.node))

    def _reached(self, names: Collection[str], now: datetime) -> dict[str, datetime]:
        """Return by node the latest send time of the launches that the node claimed recently."""
        share = attempt_nodes.c
        lately = now - timedelta(seconds=self._context.settings.resend_seconds)
        query = (
            select(share.node, func.max(share.sent_at))
            .where(HOLDS_SLOTS, share.node.in_(names), share.claimed_at > lately)
            .group_by(share.node)
        )
        with self._context.database.read() as connection:
            return {node: sent_at for node, sent_at in connection.execute(query) if sent_at}

    def _may_still_arrive(
        self, share: UnclaimedShare, reached: datetime | None, now: datetime
    ) -> bool:
        """Return whether a share's message is probably still in the queue of a busy node.

        A node takes messages in order. If the node lately claimed only older messages, this message
        is probably still queued, and a repeat would only cause a refused claim. If the node claimed
        a later message, this message is lost. If the broker came up after this message was sent,
        the message may be lost. `reached` is the send time of the newest message that the node
        claimed lately.
        """
        accepts_since, sent_at = self._dispatcher.up_since, share.sent_at
        if reached is None or accepts_since is None or sent_at < accepts_since:
            return False
        return reached <= sent_at and now - sent_at < LONGEST_RESEND_PAUSE

    def _pause(self, share: UnclaimedShare, uptime: ServerUptime) -> timedelta:
        """Return the pause after the last message for a share: 5, 10, 20, 40, then 60 s.

        Pauses grow because a node is far more often busy than unreachable, and each repeat costs a
        refused claim. A pause is `resend_seconds` plus the time from the start of the wait to the
        last message, so each pause is twice the previous one. The wait starts again when the broker
        or the servers come up, because earlier messages were probably lost.
        """
        shortest = timedelta(seconds=self._context.settings.resend_seconds)
        accepts_since = self._dispatcher.up_since
        if accepts_since is None:
            return shortest
        waited = share.sent_at - max(share.created_at, uptime.up_since, accepts_since)
        return min(shortest + max(waited, timedelta()), max(LONGEST_RESEND_PAUSE, shortest))


def _unclaimed(share: UnclaimedShare, seconds: float) -> Failure:
    """Return the failure of a share that was not claimed in time.

    If the server does not serve the worker's protocol, the launch is repeated without using up a
    retry.
    """
    failure = Failure(
        reason=FailureReason.LAUNCH_ERROR,
        message=f"{share.node} did not claim the attempt within {seconds:g} s; does its worker "
        "take messages?",
        node=share.node,
        node_at_fault=True,
    )
    if share.is_served:
        return failure
    return replace(
        failure,
        message=f"the server does not serve the protocol of the worker of {share.node}",
        remedy=Remedy(text=f"Upgrade the worker of {share.node}."),
        node_at_fault=False,
        free_retry=True,
    )


def _silence_of(share: SilentShare, silence: timedelta) -> str:
    return f"{share.node} has been silent for {silence.total_seconds():.0f} s"


def _effective_spec(share: SilentShare) -> JobSpec | None:
    """Return the spec with the attempt's overrides; None if spec or overrides are unreadable."""
    try:
        overrides = share.overrides.read(f"overrides of attempt {share.attempt_id}")
        return overrides.apply(share.spec.read(f"spec of job {share.job_id}"))
    except UnreadableError as error:
        if share.unreachable_since is None:  # log only once
            logger.error("%s", error)
        return None

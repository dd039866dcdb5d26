"""Gives chores to nodes, one at a time each, judges their leases, and scrubs (lifecycle, 32-39)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, ClassVar

from sqlalchemy import Connection, Table, case, func, select, update

from server.chores.carrying import lock_job_if_there
from server.chores.queue import describe, end_chore, identity
from server.chores.service import queue_look
from server.context import Context
from server.database.rows import CheckpointHead, Chore, JobHead, TypedRow
from server.database.tables import checkpoints, chores, jobs
from server.events.store import append_event
from server.leases import CHORE_LEASES
from server.lifecycle import chore_to, lock_job, move
from server.liveness import hearing
from server.nodes.capacity import read_offers
from server.scheduling.chore_placement import Wanted, choose
from server.scheduling.dispatch import Dispatcher
from server.subject import SCHEDULER, SCRUBBING, Subject
from trainyard.protocol.chores import MAX_TRIES, ChoreKind, ChoreTask
from trainyard.protocol.rest.event_data import ChoreQueued, ChoreWaiting
from trainyard.protocol.states import OPEN_CHORE_STATES, ChoreState
from trainyard.protocol.worker_messages import ChoreMessage

logger = logging.getLogger(__name__)

LOOKED_AT = 1000
"""Queued chores that are looked at in one round."""
SCRUB_EVERY = timedelta(minutes=1)
"""Pause between two looks for a checkpoint to scrub."""


@dataclass(frozen=True, slots=True)
class QueuedChore(TypedRow):
    """A chore that has not begun."""

    table: ClassVar[Table] = chores
    id: str
    kind: ChoreKind
    task: ChoreTask
    storage: str | None
    node: str | None
    given_at: datetime | None
    sent_at: datetime | None
    fence: int
    waiting: str | None
    job_id: str
    checkpoint_id: str | None

    def is_given(self, *, since: datetime) -> bool:
        """Return whether a node has had it since a time."""
        return self.node is not None and self.given_at is not None and self.given_at > since


@dataclass(frozen=True, slots=True)
class SilentChore(TypedRow):
    """A chore whose lease may have run out."""

    table: ClassVar[Table] = chores
    id: str
    job_id: str
    heard_at: Annotated[datetime, CHORE_LEASES.heard_at]


class ChoreKeeper:
    """Sees to the chores, round by round."""

    def __init__(self, context: Context, dispatcher: Dispatcher) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._scrubbed_at: datetime | None = None

    def run(self) -> None:
        """Judge, give and send once."""
        now = self._context.now()
        self._judge(now)
        self._scrub(now)
        for message in self._give(now):
            self._dispatcher.send(message)

    # ---- giving ---------------------------------------------------------------------------------

    def _give(self, now: datetime) -> list[ChoreMessage]:
        settings = self._context.settings
        resend = now - timedelta(seconds=settings.resend_seconds)
        claim_by = now - timedelta(seconds=settings.claim_seconds)
        with self._context.database.read() as connection:
            queue = self._queue(connection)
            if not queue:
                return []
            given = [row for row in queue if row.is_given(since=claim_by)]
            due = [row for row in given if row.sent_at is not None and row.sent_at <= resend]
            waiting = [row for row in queue if row not in given]
            running = connection.scalars(
                select(chores.c.node).where(chores.c.state == ChoreState.RUNNING)
            )
            busy = frozenset(running) | {row.node for row in given if row.node is not None}
            choices = choose([_wanted(row) for row in waiting], read_offers(connection), busy)
        given_to = {row.id: f"was given to {row.node}, which has not begun it yet" for row in given}
        reasons = {**given_to, **choices.waiting}
        unexplained = [row for row in queue if row.id in reasons and row.waiting != reasons[row.id]]
        if not choices.given and not due and not unexplained:
            return []
        with self._context.database.write() as connection:
            still = [row for row in due if _mark(connection, row, sent_at=now)]
            messages = [ChoreMessage(chore_id=row.id, node=row.node) for row in still if row.node]
            for row in waiting:
                node = choices.given.get(row.id)
                if node and _mark(connection, row, node=node, sent_at=now, given_at=now):
                    messages.append(ChoreMessage(chore_id=row.id, node=node))
            self._explain(connection, unexplained, reasons)
        return messages

    def _explain(
        self, connection: Connection, rows: Sequence[QueuedChore], reasons: Mapping[str, str]
    ) -> None:
        """Store the reasons that changed: first on the chores, in one order, then as events."""
        stored = [
            row
            for row in sorted(rows, key=lambda row: str(row.id))
            if _mark(connection, row, waiting=reasons[row.id])
        ]
        for row in stored:
            append_event(
                self._context,
                connection,
                ChoreWaiting(
                    **identity(row.id, row.kind, row.checkpoint_id), waiting=reasons[row.id]
                ),
                message=f"{describe(row.kind, row.checkpoint_id)} {reasons[row.id]}",
                actor=SCHEDULER,
                subject=Subject(row.job_id),
            )

    def _queue(self, connection: Connection) -> Sequence[QueuedChore]:
        """Return the queued chores: those that a job or a person waits for first, scrubs last."""
        kind = chores.c.kind
        turn = case(
            *((kind == ChoreKind.RECOVER, 0), (kind == ChoreKind.SAMPLE, 1)),
            (kind == ChoreKind.SCRUB, 3),
            else_=2,
        )
        queued = QueuedChore.select().where(chores.c.state == ChoreState.QUEUED)
        return QueuedChore.all(connection, queued.order_by(turn, chores.c.id).limit(LOOKED_AT))

    # ---- leases ---------------------------------------------------------------------------------

    def _judge(self, now: datetime) -> None:
        seconds = self._context.settings.lease_seconds
        with self._context.database.read() as connection:
            heard = hearing(connection, now)
            if heard is None:
                return
            expired = CHORE_LEASES.expired(heard, seconds=seconds)
            silent = SilentChore.all(connection, SilentChore.select().where(expired))
        for row in silent:
            self._take_back(row)

    def _take_back(self, row: SilentChore) -> None:
        """Queue a chore whose node is silent again, or let it fail."""
        context = self._context
        with context.database.write() as connection:
            lock_job_if_there(connection, row.job_id)
            query = Chore.select().where(CHORE_LEASES.unheard_since(row)).with_for_update()
            chore = Chore.one_or_none(connection, query)
            if chore is None:
                return  # it has reported or ended meanwhile
            reason = f"{chore.node} has been silent for {context.settings.lease_seconds:g} s"
            if chore.fence >= MAX_TRIES:
                message = f"{reason}; given up after {chore.fence} tries"
                end_chore(
                    context,
                    connection,
                    chore,
                    ChoreState.FAILED,
                    message=message,
                    actor=SCHEDULER,
                )
                return
            move(
                context,
                connection,
                chore_to(
                    chore.id,
                    ChoreState.QUEUED,
                    node=None,
                    sent_at=None,
                    given_at=None,
                    waiting=None,
                ),
                event=ChoreQueued(
                    **identity(chore.id, chore.kind, chore.checkpoint_id), reason=reason
                ),
                message=f"{describe(chore.kind, chore.checkpoint_id)} again: {reason}",
                actor=SCHEDULER,
                subject=Subject(chore.job_id, node=chore.node),
            )

    # ---- scrubbing ------------------------------------------------------------------------------

    def _scrub(self, now: datetime) -> None:
        """Queue a scrub of the checkpoint that nobody has looked at for longest, one at a time."""
        days = self._context.settings.scrub_interval_days
        if days == 0 or (self._scrubbed_at is not None and now - self._scrubbed_at < SCRUB_EVERY):
            return
        self._scrubbed_at = now
        seen_at = func.coalesce(checkpoints.c.checked_at, checkpoints.c.created_at)
        oldest = (
            select(checkpoints.c.id, checkpoints.c.job_id)
            .where(
                checkpoints.c.deleting_since.is_(None),
                checkpoints.c.verified.is_not(False),  # nothing more can be learned of the others
                seen_at < now - timedelta(days=days),
            )
            .order_by(seen_at, checkpoints.c.id)
            .limit(1)
        )
        scrubbing = select(chores.c.id).where(
            chores.c.kind == ChoreKind.SCRUB, chores.c.state.in_(sorted(OPEN_CHORE_STATES))
        )
        with self._context.database.read() as connection:
            found = connection.execute(oldest).one_or_none()
            if found is None or connection.execute(scrubbing.limit(1)).one_or_none():
                return
        self._queue_scrub(found.id, found.job_id)

    def _queue_scrub(self, checkpoint_id: str, job_id: str) -> None:
        context = self._context
        with context.database.write() as connection:
            lock_job(connection, job_id)
            staying = CheckpointHead.select().where(
                checkpoints.c.id == checkpoint_id, checkpoints.c.deleting_since.is_(None)
            )
            row = CheckpointHead.one_or_none(connection, staying)
            job = JobHead.one(connection, JobHead.select().where(jobs.c.id == job_id))
            if row is not None:
                reason = f"not looked at for {context.settings.scrub_interval_days:g} days"
                queue_look(
                    context,
                    connection,
                    job,
                    row,
                    ChoreKind.SCRUB,
                    actor=SCRUBBING,
                    reason=reason,
                )


def _wanted(row: QueuedChore) -> Wanted:
    task = row.task
    return Wanted(row.id, task.kind, task.root, row.storage, task.other_roots)


def _mark(connection: Connection, row: QueuedChore, **values: object) -> bool:
    """Store values of a queued chore, unless it was claimed or taken back meanwhile."""
    unchanged = (chores.c.state == ChoreState.QUEUED) & (chores.c.fence == row.fence)
    stored = update(chores).where(chores.c.id == row.id, unchanged).values(**values)
    return connection.execute(stored).rowcount == 1

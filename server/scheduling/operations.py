"""Operations of a round: assign them to nodes, expire their leases, queue scrubs (32-39)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, ClassVar

from sqlalchemy import Connection, Table, case, func, select, update

from server.checkpoints.service import queue_look
from server.context import Context
from server.database.rows import CheckpointHead, JobHead, Operation, TypedRow
from server.database.tables import checkpoints, jobs, nodes, operations
from server.events.notices import notify_all
from server.events.store import NewEvent
from server.leases import OPERATION_LEASES
from server.lifecycle import lock_job, move, operation_to
from server.liveness import hearing
from server.nodes.capacity import read_offers
from server.operations.service import describe, end_operation, identity, lock_job_if_there
from server.protocol_2 import ChoreMessage, lacking
from server.scheduling.dispatch import Dispatcher, Message
from server.scheduling.operation_placement import Wanted, choose
from server.subject import SCHEDULER, SCRUBBING, Subject
from trainyard.protocol.operations import MAX_TRIES, OperationKind, OperationTask
from trainyard.protocol.rest.event_data import OperationQueued, OperationWaiting
from trainyard.protocol.states import OPEN_OPERATION_STATES, OperationState
from trainyard.protocol.worker_messages import PROTOCOL, OperationMessage

logger = logging.getLogger(__name__)

LOOKED_AT = 1000
"""Queued operations that one round considers."""
SCRUB_EVERY = timedelta(minutes=1)
"""Pause between two searches for a checkpoint to scrub."""


@dataclass(frozen=True, slots=True)
class QueuedOperation(TypedRow):
    """An operation that has not started."""

    table: ClassVar[Table] = operations
    id: str
    kind: OperationKind
    task: OperationTask
    storage: str | None
    node: str | None
    given_at: datetime | None
    sent_at: datetime | None
    fence: int
    waiting: str | None
    job_id: str
    checkpoint_id: str | None

    def is_given(self, *, since: datetime) -> bool:
        """Return whether it was assigned to a node after a time."""
        return self.node is not None and self.given_at is not None and self.given_at > since


@dataclass(frozen=True, slots=True)
class SilentOperation(TypedRow):
    """An operation whose lease may have run out."""

    table: ClassVar[Table] = operations
    id: str
    job_id: str
    heard_at: Annotated[datetime, OPERATION_LEASES.heard_at]


class OperationKeeper:
    """Places operations, expires their leases and queues scrubs, round by round."""

    def __init__(self, context: Context, dispatcher: Dispatcher) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._scrubbed_at: datetime | None = None

    def run(self) -> None:
        """Run one round: expire leases, queue a scrub, send messages."""
        now = self._context.now()
        self._judge(now)
        self._scrub(now)
        for message in self._give(now):
            self._dispatcher.send(message)

    def _give(self, now: datetime) -> list[Message]:
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
                select(operations.c.node).where(operations.c.state == OperationState.RUNNING)
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
            older = nodes.c.protocol < PROTOCOL
            on_protocol_2 = frozenset(connection.scalars(select(nodes.c.name).where(older)))
            assigned = [(row.id, row.node) for row in still if row.node]
            for row in waiting:
                node = choices.given.get(row.id)
                if node and _mark(connection, row, node=node, sent_at=now, given_at=now):
                    assigned.append((row.id, node))
            self._explain(connection, unexplained, reasons)
        return [
            ChoreMessage(chore_id=operation_id, node=node)
            if node in on_protocol_2
            else OperationMessage(operation_id=operation_id, node=node)
            for operation_id, node in assigned
        ]

    def _explain(
        self, connection: Connection, rows: Sequence[QueuedOperation], reasons: Mapping[str, str]
    ) -> None:
        """Store changed reasons on the operations, then as notices.

        Both by sorted keys: transactions that lock several rows take them in one order.
        """
        stored = [
            row
            for row in sorted(rows, key=lambda row: str(row.id))
            if _mark(connection, row, waiting=reasons[row.id])
        ]
        changed = [
            (
                Subject(row.job_id),
                OperationWaiting(
                    **identity(row.id, row.kind, row.checkpoint_id), waiting=reasons[row.id]
                ),
            )
            for row in sorted(stored, key=lambda row: (row.job_id, row.id))
        ]
        notify_all(self._context, connection, changed)

    def _queue(self, connection: Connection) -> Sequence[QueuedOperation]:
        """Return the queued operations: those that block a job or a person first, scrubs last."""
        kind = operations.c.kind
        turn = case(
            *((kind == OperationKind.RECOVER, 0), (kind == OperationKind.SAMPLE, 1)),
            (kind == OperationKind.SCRUB, 3),
            else_=2,
        )
        queued = QueuedOperation.select().where(operations.c.state == OperationState.QUEUED)
        return QueuedOperation.all(
            connection, queued.order_by(turn, operations.c.id).limit(LOOKED_AT)
        )

    def _judge(self, now: datetime) -> None:
        seconds = self._context.settings.lease_seconds
        with self._context.database.read() as connection:
            heard = hearing(connection, now)
            if heard is None:
                return
            expired = OPERATION_LEASES.expired(heard, seconds=seconds)
            silent = SilentOperation.all(connection, SilentOperation.select().where(expired))
        for row in silent:
            self._take_back(row)

    def _take_back(self, row: SilentOperation) -> None:
        """Queue an operation again whose lease has expired; the third expiry fails it."""
        context = self._context
        with context.database.write() as connection:
            lock_job_if_there(connection, row.job_id)
            query = Operation.select().where(OPERATION_LEASES.unheard_since(row)).with_for_update()
            operation = Operation.one_or_none(connection, query)
            if operation is None:
                return  # a report or the end came between the read and the lock
            reason = f"{operation.node} has been silent for {context.settings.lease_seconds:g} s"
            if operation.fence >= MAX_TRIES:
                message = f"{reason}; given up after {operation.fence} tries"
                end_operation(
                    context,
                    connection,
                    operation,
                    OperationState.FAILED,
                    message=message,
                    actor=SCHEDULER,
                )
                return
            event = NewEvent(
                OperationQueued(
                    **identity(operation.id, operation.kind, operation.checkpoint_id), reason=reason
                ),
                SCHEDULER,
                Subject(operation.job_id, node=operation.node),
                f"{describe(operation.kind, operation.checkpoint_id)} again: {reason}",
            )
            move(
                context,
                connection,
                event,
                operation_to(
                    operation.id,
                    OperationState.QUEUED,
                    node=None,
                    sent_at=None,
                    given_at=None,
                    waiting=None,
                ),
            )

    def _scrub(self, now: datetime) -> None:
        """Queue a scrub of the checkpoint with the oldest check, one at a time."""
        days = self._context.settings.scrub_interval_days
        if days == 0 or (self._scrubbed_at is not None and now - self._scrubbed_at < SCRUB_EVERY):
            return
        self._scrubbed_at = now
        seen_at = func.coalesce(checkpoints.c.checked_at, checkpoints.c.created_at)
        oldest = (
            select(checkpoints.c.id, checkpoints.c.job_id)
            .where(
                checkpoints.c.deleting_since.is_(None),
                checkpoints.c.verified.is_not(False),  # a damaged one stays damaged
                seen_at < now - timedelta(days=days),
            )
            .order_by(seen_at, checkpoints.c.id)
            .limit(1)
        )
        scrubbing = select(operations.c.id).where(
            operations.c.kind == OperationKind.SCRUB,
            operations.c.state.in_(sorted(OPEN_OPERATION_STATES)),
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
                    OperationKind.SCRUB,
                    actor=SCRUBBING,
                    reason=reason,
                )


def _wanted(row: QueuedOperation) -> Wanted:
    task = row.task
    fields = lacking(task)
    return Wanted(row.id, task.kind, task.root, row.storage, task.other_roots, fields)


def _mark(connection: Connection, row: QueuedOperation, **values: object) -> bool:
    """Store values of a queued operation; False where a claim or a takeover came first.

    A claim raises the fence, so the comparison also covers one that was taken back since.
    """
    unchanged = (operations.c.state == OperationState.QUEUED) & (operations.c.fence == row.fence)
    stored = update(operations).where(operations.c.id == row.id, unchanged).values(**values)
    return connection.execute(stored).rowcount == 1

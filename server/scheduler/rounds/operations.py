"""Assigns operations to nodes, expires their leases, and queues scrubs.

See docs/lifecycle-operations.md, 32-39.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from sqlalchemy import Connection, case, exists, func, or_, select, update

from server.cluster.nodes.capacity import POLLS, read_offers
from server.cluster.placement.demand import NO_ACCOUNT, Demand
from server.cluster.placement.give import QueuedOperation, give
from server.core.context import Context
from server.core.database.column_types import StoredRecord
from server.core.database.rows import OperationHead
from server.core.database.tables import checkpoints, nodes, operations
from server.core.errors import ConflictError, NotFoundError, UnreadableError
from server.core.events.notices import notify_all
from server.core.events.store import NewEvent
from server.core.isolation import Isolation
from server.core.leases import OPERATION_LEASES
from server.core.lifecycle import move, operation_to
from server.core.liveness import server_uptime
from server.core.people.unix_accounts import operations_account
from server.core.subject import SCHEDULER, SCRUBBING, Subject
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.checkpoints.guards import locked_to_stay
from server.jobs.checkpoints.service import queue_on
from server.jobs.operations.queries import ARE_OPEN
from server.jobs.operations.service import (
    REPEATS,
    describe,
    end_operation,
    identity,
    is_repeated,
    lock_job_if_there,
    repeat_later,
    subject_of,
)
from server.scheduler.rounds.dispatch import Dispatcher, Message
from trainyard.protocol.operations import MAX_TRIES, OperationKind, OperationTask
from trainyard.protocol.rest.event_data import OperationQueued, OperationWaiting
from trainyard.protocol.states import OperationState
from trainyard.protocol.worker_messages import OperationMessage

logger = logging.getLogger(__name__)

MAX_CONSIDERED = 1000
"""Maximum number of queued operations that one round considers."""
ON_NETWORK = (("network", "true"),)
"""Label of nodes that can download packages."""
HOLD_JOBS = frozenset({OperationKind.RECOVER, OperationKind.BUILD})
"""Kinds of operations for which jobs wait; a running automatic export gives way to them."""
MAX_FAILING_SCRUBS = 20
"""While this many failed scrubs wait for another try, no new scrub is queued."""


@dataclass(frozen=True, slots=True)
class UnclaimedOperation(OperationHead):
    """A queued operation, or a running operation, which occupies its node."""

    task: StoredRecord[OperationTask]
    storage: str | None
    given_at: datetime | None
    sent_at: datetime | None
    waiting: str | None
    owners_account: Annotated[str | None, operations_account.label("owners_account")]


@dataclass(frozen=True, slots=True)
class SilentOperation(OperationHead):
    """A running operation with a lease that may have run out."""

    heard_at: Annotated[datetime, OPERATION_LEASES.heard_at]


class OperationKeeper:
    """Places operations, expires their leases and queues scrubs, round by round."""

    def __init__(self, context: Context, dispatcher: Dispatcher) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._isolation = Isolation(context.clock.monotonic)

    def run(self) -> None:
        """Run one round: expire leases, assign operations and send messages."""
        now = self._context.now()
        self._judge(now)
        for message in self._give(now):
            self._dispatcher.send(message)

    def _give(self, now: datetime) -> list[Message]:
        settings = self._context.settings
        resend = now - timedelta(seconds=settings.resend_seconds)
        claim_by = now - timedelta(seconds=settings.claim_seconds)
        with self._context.database.read() as connection:
            queue = self._queue(connection, now)
            if not queue:
                return []
            runs = operations.c.state == OperationState.RUNNING
            running = UnclaimedOperation.all(connection, UnclaimedOperation.select().where(runs))
            offers = read_offers(connection)
        given = [
            row for row in queue if row.node and row.given_at and claim_by < row.given_at <= now
        ]
        assigned = [*running, *given]
        building = _built_by([row for row in assigned if row.kind == OperationKind.BUILD])
        waiting, reasons = _wanted([row for row in queue if row not in given], building)
        busy = {row.node for row in assigned if row.node}
        placed, why = give(waiting, offers, busy)
        reasons |= why
        holding = {row.id: row for row in queue if row.id in why and row.kind in HOLD_JOBS}
        exports = {row.node: row for row in running if row.kind == OperationKind.AUTO_EXPORT}
        if holding and exports:
            held_back = [each for each in waiting if each.id in holding]
            others = {
                row.node for row in assigned if row.node and row.kind != OperationKind.AUTO_EXPORT
            }
            room, _ = give(held_back, offers, others | {*placed.values()})
            pairs = [(exports.get(node), holding[key]) for key, node in room.items()]
            self._make_room([(export, other) for export, other in pairs if export is not None])
        for row in given:
            reasons[row.id] = f"was given to {row.node}, which has not started it yet"
        due: list[tuple[UnclaimedOperation, dict[str, Any]]] = [
            (row, {"node": row.node, "sent_at": now})
            for row in given
            if row.sent_at is not None and not resend < row.sent_at <= now
        ]
        as_owner = {offer.node for offer in offers if offer.accounts is not None}
        for row in queue:
            if (node := placed.get(row.id)) is not None:
                account = (_account(row) or None) if node in as_owner else None
                new = {"node": node, "account": account, "sent_at": now, "given_at": now}
                due.append((row, new))
        unexplained = [row for row in queue if row.id in reasons and row.waiting != reasons[row.id]]
        if not due and not unexplained:
            return []
        with self._context.database.write() as connection:
            fetches = nodes.c.inbox == POLLS
            polling = frozenset(connection.scalars(select(nodes.c.name).where(fetches)))
            sent = [(r.id, new["node"]) for r, new in due if _mark(connection, r, **new)]
            self._explain(connection, unexplained, reasons)
        return [
            OperationMessage(operation_id=operation_id, node=node)
            for operation_id, node in sent
            if node not in polling
        ]

    def _explain(
        self, connection: Connection, rows: Sequence[UnclaimedOperation], reasons: Mapping[str, str]
    ) -> None:
        """Store changed reasons in the operations, and send the same reasons as notices.

        Operations are sorted by id, and notices by job, because all transactions have to lock rows
        in the same order.
        """
        ordered = sorted(rows, key=lambda row: row.id)
        stored = [row for row in ordered if _mark(connection, row, waiting=reasons[row.id])]
        changed = [
            (Subject(row.job_id), OperationWaiting(**identity(row), waiting=reasons[row.id]))
            for row in sorted(stored, key=lambda row: (row.job_id, row.id))
        ]
        notify_all(self._context, connection, changed)

    def _queue(self, connection: Connection, now: datetime) -> Sequence[UnclaimedOperation]:
        """Return due operations: first those that block a job or a person, automatic exports near
        the end, and scrubs last.

        An operation with a pause longer than `REPEATS.longest` is due, too, because such a pause
        was stored before a clock was set back.
        """
        latest = now + timedelta(seconds=REPEATS.longest)
        not_before = operations.c.not_before
        due = or_(not_before.is_(None), not_before <= now, not_before > latest)
        kind = OperationKind
        turns = {kind.RECOVER: 0, kind.BUILD: 0, kind.SAMPLE: 1, kind.AUTO_EXPORT: 3, kind.SCRUB: 4}
        turn = case(*((operations.c.kind == key, turns[key]) for key in turns), else_=2)
        waits = operations.c.state == OperationState.QUEUED
        queued = UnclaimedOperation.select().where(waits, due)
        return UnclaimedOperation.all(
            connection, queued.order_by(turn, operations.c.id).limit(MAX_CONSIDERED)
        )

    def _judge(self, now: datetime) -> None:
        seconds = self._context.settings.lease_seconds
        with self._context.database.read() as connection:
            uptime = server_uptime(connection, now)
            if uptime is None:
                return
            expired = OPERATION_LEASES.expired(uptime, seconds=seconds)
            silent = SilentOperation.all(connection, SilentOperation.select().where(expired))
        left_out = self._isolation.left_out()
        for row in silent:
            if row.id not in left_out:
                with self._isolation.turn(row.id, f"the expired lease of operation {row.id}"):
                    self._take_back(row)

    def _take_back(self, row: SilentOperation) -> None:
        """Queue an operation again after its lease expired; after `MAX_TRIES` tries, fail it.

        An operation of the kinds `REPEATED` does not fail, but pauses before further tries. For an
        automatic export, the expired lease counts as a failure.
        """
        context = self._context
        with context.database.write() as connection:
            lock_job_if_there(connection, row.job_id)
            same = select(operations.c.id).where(OPERATION_LEASES.unheard_since(row))
            if connection.execute(same.with_for_update()).one_or_none() is None:
                return  # a report or the end preceded the lock
            reason = f"{row.node} has been silent for {context.settings.lease_seconds:g} s"
            if row.fence < MAX_TRIES and row.kind != OperationKind.AUTO_EXPORT:
                self._queue_again(connection, row, reason)
            elif is_repeated(row):
                repeat_later(context, connection, operation=row, reason=reason)
            else:
                end_operation(
                    context,
                    connection,
                    operation=row,
                    state=OperationState.FAILED,
                    message=f"{reason}; given up after {row.fence} tries",
                    actor=SCHEDULER,
                )

    def _make_room(self, pairs: Sequence[tuple[OperationHead, OperationHead]]) -> None:
        """Queue the export of each pair again, because the other operation takes its node.

        The node ends the command of the export after its next report.
        """
        for export, other in pairs:
            runs = (operations.c.id == export.id) & (operations.c.fence == export.fence)
            same = select(operations.c.id).where(runs, operations.c.state == OperationState.RUNNING)
            with (
                self._isolation.turn(export.id, f"the place of operation {export.id}"),
                self._context.database.write() as connection,
            ):
                lock_job_if_there(connection, export.job_id)
                if connection.execute(same.with_for_update()).one_or_none() is not None:
                    self._queue_again(connection, export, f"gives way to {describe(other)}")

    def _queue_again(self, connection: Connection, row: OperationHead, reason: str) -> None:
        data = OperationQueued(**identity(row), reason=reason)
        message = f"{describe(row)} again: {reason}"
        event = NewEvent(data, SCHEDULER, subject_of(row, row.node), message)
        given = dict.fromkeys(("node", "account", "sent_at", "given_at", "waiting", "progress"))
        queued = operation_to(row.id, OperationState.QUEUED, **given)
        move(self._context, connection, event, queued)

    def queue_scrub(self) -> None:
        """Queue a scrub of the checkpoint with the oldest check, unless a scrub is queued or runs.

        Failed scrubs that wait for a retry do not count. But if `MAX_FAILING_SCRUBS` of them wait,
        no scrub is queued, because the storage must be the cause.
        """
        days, now = self._context.settings.scrub_interval_days, self._context.now()
        if days == 0:
            return
        scrubs = (operations.c.kind == OperationKind.SCRUB, ARE_OPEN)
        seen_at = func.coalesce(checkpoints.c.checked_at, checkpoints.c.created_at)
        due = select(checkpoints.c.id).where(
            checkpoints.c.deleting_since.is_(None),
            checkpoints.c.verified.is_not(False),  # a damaged checkpoint stays damaged
            seen_at < now - timedelta(days=days),
            ~exists().where(operations.c.checkpoint_id == checkpoints.c.id, *scrubs),
        )
        fresh = operations.c.failing.is_(None)
        counted = select(func.count().filter(fresh), func.count().filter(~fresh)).where(*scrubs)
        context = self._context
        with context.database.read() as connection:
            checkpoint_id = connection.scalar(due.order_by(seen_at, checkpoints.c.id).limit(1))
            open_now, failing = connection.execute(counted).one()
            if checkpoint_id is None or open_now or failing >= MAX_FAILING_SCRUBS:
                return
        gone = suppress(NotFoundError, ConflictError)  # between the read and the lock
        with context.database.write() as connection, gone:
            job, checkpoint = locked_to_stay(connection, checkpoint_id, scope=SYSTEM_SCOPE)
            queue_on(
                context,
                connection,
                job=job,
                checkpoint=checkpoint,
                kind=OperationKind.SCRUB,
                actor=SCRUBBING,
                reason=f"not looked at for {days:g} days",
            )


def _built_by(rows: Sequence[UnclaimedOperation]) -> set[tuple[str | None, str]]:
    """Return storage UUID and digest of each environment that an operation builds."""
    found = set()
    for row in rows:
        with suppress(UnreadableError):
            build = row.task.read(f"task of operation {row.id}").build
            if build is not None:
                found.add((row.storage, build.digest))
    return found


def _wanted(
    rows: Sequence[UnclaimedOperation], building: set[tuple[str | None, str]]
) -> tuple[list[QueuedOperation], dict[str, str]]:
    """Return the operations to assign, and by id the reasons why others cannot be assigned.

    Args:
        rows: queued operations by precedence.
        building: storage and digest of each environment that a node already builds. This call adds
            the environments of `rows`, so that only one of several equal builds is assigned at a
            time.
    """
    wanted: list[QueuedOperation] = []
    reasons: dict[str, str] = {}
    for row in rows:
        try:
            task = row.task.read(f"task of operation {row.id}")
        except UnreadableError as error:
            reasons[row.id] = str(error)
            if row.waiting != str(error):  # log only once
                logger.error("%s", error)
            continue
        if task.build is not None:
            key = (row.storage, task.build.digest)
            if key in building:
                reasons[row.id] = "waits for the build of the same environment for another job"
                continue
            building.add(key)
        demand = Demand(
            world_size=0,
            roots=(task.root, *sorted(task.other_roots)),
            storage=None if row.storage is None else (task.root, row.storage),
            node_selector=ON_NETWORK if task.build is not None else (),
            account=_account(row),
        )
        is_scrub = row.kind == OperationKind.SCRUB
        wanted.append(QueuedOperation(row.id, demand, is_scrub, unclaimed_by=row.node))
    return wanted, reasons


def _account(row: UnclaimedOperation) -> str | None:
    """Return the account of an operation on nodes that need one; a build serves all users."""
    return NO_ACCOUNT if row.kind == OperationKind.BUILD else row.owners_account


def _mark(connection: Connection, row: UnclaimedOperation, **values: object) -> bool:
    """Store values of an operation that is still queued; return False if a claim came first.

    Each claim raises the fence. So the comparison also detects a claim that has expired since,
    after which the operation was queued again.
    """
    unchanged = (operations.c.state == OperationState.QUEUED) & (operations.c.fence == row.fence)
    stored = update(operations).where(operations.c.id == row.id, unchanged).values(**values)
    return connection.execute(stored).rowcount == 1

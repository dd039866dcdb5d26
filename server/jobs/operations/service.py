"""The life cycle of an operation: queue, claim by a node, reports, end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, insert, select, update

from server.cluster.nodes.workers import check_worker
from server.core.context import Context
from server.core.database.rows import JobHead, Operation, OperationHead
from server.core.database.tables import jobs, operations
from server.core.errors import ConflictError, NotFoundError
from server.core.events.notices import notify
from server.core.events.store import NewEvent, append_event
from server.core.leases import OPERATION_LEASES, check_fence
from server.core.lifecycle import job_to, lock_job, move, operation_to
from server.core.subject import SCHEDULER, SERVER, Actor, Subject
from server.jobs.operations.queries import no_operation, open_operations
from trainyard.base.backoff import Backoff
from trainyard.protocol.operations import (
    LOOKS,
    MAX_TRIES,
    REPEATED,
    FailedTries,
    OperationKind,
    OperationOutcome,
    OperationTask,
)
from trainyard.protocol.rest.event_data import (
    JobEnded,
    OperationEnded,
    OperationProgressed,
    OperationQueued,
    OperationStarted,
)
from trainyard.protocol.states import JobState, OperationState
from trainyard.protocol.worker_messages import (
    OperationClaimReply,
    OperationReport,
    OperationReportReply,
    WorkerIdentity,
)
from trainyard.run.failures import FailureReason

REPEATS = Backoff(first=30.0, longest=21_600.0)
"""Pauses, in seconds, between the tries of an operation that is repeated after a failure."""
REPORT_SECONDS = 1.0
"""Shortest interval between two reports on an operation, in seconds."""
MEND_BUILD = "Mend what the message names, then resume; a lock in a pack needs a new job."
"""Remedy for a failed build."""


def queue_operation(
    context: Context,
    connection: Connection,
    task: OperationTask,
    *,
    job: JobHead,
    actor: Actor,
    reason: str,
    checkpoint_id: str | None = None,
    storage: str | None = None,
) -> str:
    """Store an operation for a locked job, and return the operation's id.

    If the checkpoint already has an open operation with the same task, no operation is stored.
    Instead, the open operation becomes due immediately, and its id is returned. Without
    `checkpoint_id`, the operation concerns the whole job. `storage` is the UUID of a storage root;
    without this UUID, the operation runs on the storage of the job.
    """
    if checkpoint_id is not None:
        mine = operations.c.checkpoint_id == checkpoint_id
        for found in open_operations(connection, {task.kind}, mine):
            if found.task == task:
                hasten = update(operations).where(operations.c.id == found.id)
                connection.execute(hasten.values(not_before=None))
                return found.id
    operation = OperationHead(
        id=context.new_id(),
        kind=task.kind,
        state=OperationState.QUEUED,
        job_id=job.id,
        job_name=job.name,
        project=job.project,
        checkpoint_id=checkpoint_id,
        node=None,
        fence=0,
        failing=None,
    )
    row = asdict(operation) | {
        "actor": actor.name,
        "owner_id": select(jobs.c.owner_id).where(jobs.c.id == job.id).scalar_subquery(),
        "reason": reason,
        "task": task,
        "storage": storage or job.storage,
        "created_at": context.now(),
    }
    connection.execute(insert(operations).values(row))
    message = describe(operation) + (reason and f": {reason}")
    queued = OperationQueued(**identity(operation), reason=reason)
    append_event(context, connection, NewEvent(queued, actor, Subject(job.id), message))
    return operation.id


def describe(operation: OperationHead) -> str:
    """Return kind and target of an operation as text for messages."""
    if operation.kind == OperationKind.BUILD:
        return f"{operation.kind} the environment of {operation.job_name}"
    if operation.kind == OperationKind.AUTO_EXPORT:
        return f"automatic export of {operation.checkpoint_id}"
    if operation.kind == OperationKind.RECOVER:
        return f"{operation.kind} commits of {operation.job_name}"
    return f"{operation.kind} {operation.checkpoint_id or 'all checkpoints'}"


def subject_of(operation: OperationHead, node: str | None) -> Subject:
    """Return the subject of an event about an operation, whose job may be deleted."""
    return Subject(operation.job_id, node=node, project=operation.project)


def identity(operation: OperationHead) -> dict[str, Any]:
    """Return the fields that identify the operation in an event."""
    kind, checkpoint_id = operation.kind, operation.checkpoint_id
    return {"operation_id": operation.id, "kind": kind, "checkpoint_id": checkpoint_id}


def cancel_looks(
    context: Context, connection: Connection, where: ColumnElement[bool], *, actor: Actor
) -> None:
    """Before a deletion, cancel the open operations of the kinds `LOOKS` that meet `where`."""
    state, message = OperationState.CANCELLED, "the checkpoint is to be deleted"
    for found in open_operations(connection, LOOKS, where):
        end_operation(
            context, connection, operation=found, state=state, message=message, actor=actor
        )


def end_operation(
    context: Context,
    connection: Connection,
    *,
    operation: OperationHead,
    state: OperationState,
    message: str,
    actor: Actor,
    ok: bool | None = None,
    **values: Any,
) -> None:
    """Move an operation to a final state, with its event; `ok` is the result of a verification.

    If a build does not succeed, the job that waits for the build fails.

    Raises:
        IllegalMoveError: the operation has ended already.
    """
    words = f"{describe(operation)} {state}: {message}"
    data = OperationEnded(**identity(operation), state=state, ok=ok)
    event = NewEvent(data, actor, subject_of(operation, operation.node), words)
    ended = operation_to(operation.id, state, ended_at=context.now(), **values)
    move(context, connection, event, ended)
    if operation.kind == OperationKind.BUILD and state != OperationState.SUCCEEDED:
        _end_waiting_job(context, connection, build=operation, message=words)


def _end_waiting_job(
    context: Context, connection: Connection, *, build: OperationHead, message: str
) -> None:
    """Fail the job of a failed build unless the job has left the queue.

    See docs/lifecycle-operations.md, 56.
    """
    if connection.scalar(select(jobs.c.state).where(jobs.c.id == build.job_id)) != JobState.QUEUED:
        return
    state, reason = JobState.FAILED, f"{FailureReason.LAUNCH_ERROR}: {message}. {MEND_BUILD}"
    words = f"{build.job_name} {state}: {reason}"
    event = NewEvent(JobEnded(state=state, reason=reason), SERVER, Subject(build.job_id), words)
    ended = job_to(
        build.job_id, state, ended_at=context.now(), pending=None, not_before=None, reason=reason
    )
    move(context, connection, event, ended)


def repeat_later(
    context: Context, connection: Connection, *, operation: OperationHead, reason: str
) -> None:
    """Queue a failed operation again, after a growing pause.

    Raises:
        IllegalMoveError: the operation is not running.
    """
    now, before = context.now(), operation.failing
    count, since = (1, now) if before is None else (before.count + 1, before.since)
    not_before = now + timedelta(seconds=REPEATS.pause_after(count))
    words = f"failed, and is tried again at {not_before:%H:%M:%S} UTC"
    event = NewEvent(
        OperationQueued(**identity(operation), reason=reason),
        SCHEDULER,
        subject_of(operation, operation.node),
        f"{describe(operation)} {words}: {reason}",
    )
    values = dict.fromkeys(("node", "account", "sent_at", "given_at", "progress")) | {
        "failing": FailedTries(count=count, since=since, reason=reason, next_at=not_before),
        "not_before": not_before,
        "waiting": words,
    }
    move(context, connection, event, operation_to(operation.id, OperationState.QUEUED, **values))


ApplyOutcome = Callable[
    [Context, Connection, Operation, OperationOutcome], tuple[OperationOutcome, bool | None]
]
"""Function that applies an outcome to the catalog, which belongs to a layer above. The function
returns the outcome to store, and the result of a verification."""


def claim_operation(
    context: Context, operation_id: str, *, node: str, worker: WorkerIdentity
) -> OperationClaimReply:
    """Claim an operation that was assigned to a node; only the first of several claims succeeds.

    Raises:
        NotFoundError: there is no such operation.
        ConflictError: the operation was assigned to another node, is running, or has ended; or
            another worker serves the node.
    """
    with context.database.write() as connection:
        operation = lock_operation(connection, operation_id)
        check_worker(connection, node, worker)
        if operation.state != OperationState.QUEUED or operation.node != node:
            raise ConflictError(
                f"operation {operation_id} is {operation.state}; {node} cannot claim it"
            )
        fence = operation.fence + 1
        event = NewEvent(
            OperationStarted(**identity(operation), fence=fence),
            Actor(node),
            subject_of(operation, node),
            f"{node} begins to {describe(operation)}",
        )
        values = {"fence": fence, "progress": None, "not_before": None}
        values |= OPERATION_LEASES.claim(context.now())
        running = operation_to(operation_id, OperationState.RUNNING, **values)
        move(context, connection, event, running)
    return OperationClaimReply(
        task=operation.task,
        storage=operation.storage,
        fence=fence,
        report_seconds=max(context.settings.report_seconds, REPORT_SECONDS),
        account=operation.account,
    )


def report_operation(
    context: Context, operation_id: str, report: OperationReport, *, apply: ApplyOutcome
) -> OperationReportReply:
    """Renew the lease of an operation, and store its progress or its outcome.

    `apply` applies the outcome to the catalog in the same transaction.

    Raises:
        NotFoundError: there is no such operation.
        ConflictError: a later claim has replaced the claim of the report, or the operation has
            ended.
    """
    with context.database.write() as connection:
        operation = lock_operation(connection, operation_id)
        check_fence(
            (operation.state, operation.node, operation.fence),
            (OperationState.RUNNING, report.node, report.fence),
            refusal=f"operation {operation_id} is no longer this node's: it is {operation.state}",
        )
        renewal = OPERATION_LEASES.renewal(context.now())
        if report.outcome is not None:
            outcome, ok = apply(context, connection, operation, report.outcome)
            if outcome.outcome == "failed" and is_repeated(operation):
                repeat_later(context, connection, operation=operation, reason=outcome.message)
                return OperationReportReply(ended=True)
            end_operation(
                context,
                connection,
                operation=operation,
                state=OperationState(outcome.outcome),
                message=outcome.message,
                actor=Actor(report.node),
                ok=ok,
                outcome=outcome,
                **renewal,
            )
            return OperationReportReply(ended=True)
        progress = report.progress or operation.progress
        mine = update(operations).where(operations.c.id == operation_id)
        connection.execute(mine.values(**renewal, progress=progress))
        if progress is not None and progress != operation.progress:
            subject = subject_of(operation, report.node)
            event = OperationProgressed(**identity(operation), progress=progress)
            notify(context, connection, subject=subject, data=event)
    return OperationReportReply(ended=False)


def is_repeated(operation: OperationHead) -> bool:
    """Return whether an operation that fails now is queued again.

    The failures of an automatic export count, not its claims, because it gives way to others.
    """
    if operation.kind == OperationKind.AUTO_EXPORT:
        failures = 0 if operation.failing is None else operation.failing.count
        return failures + 1 < MAX_TRIES
    return operation.kind in REPEATED


def lock_operation(connection: Connection, operation_id: str) -> Operation:
    """Lock an operation, and its job if the job still exists; return the operation.

    Raises:
        NotFoundError: there is no such operation.
    """
    job_id = connection.scalar(select(operations.c.job_id).where(operations.c.id == operation_id))
    if job_id is None:
        raise no_operation(operation_id)
    lock_job_if_there(connection, job_id)
    query = Operation.select().where(operations.c.id == operation_id).with_for_update()
    return Operation.one(connection, query)


def lock_job_if_there(connection: Connection, job_id: str) -> None:
    """Lock the job of an operation if the job still exists."""
    with suppress(NotFoundError):
        lock_job(connection, job_id)

"""Worker API for operations: claim, progress, completion."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, select, update

from server.context import Context
from server.database.rows import Operation
from server.database.tables import operations
from server.errors import ConflictError, NotFoundError
from server.events.notices import notify
from server.leases import OPERATION_LEASES, check_fence
from server.lifecycle import lock_job, move, operation_to
from server.nodes.workers import check_worker
from server.operations.store import describe, end_operation, identity
from server.protocol_2 import check_reply
from server.subject import Actor, Subject
from trainyard.protocol.operations import (
    OperationOutcome,
    OperationProgress,
)
from trainyard.protocol.rest.event_data import OperationProgressed, OperationStarted
from trainyard.protocol.states import OperationState
from trainyard.protocol.worker_messages import (
    PROTOCOL,
    OperationClaimReply,
    OperationReport,
    OperationReportReply,
    WorkerIdentity,
)

ApplyOutcome = Callable[
    [Context, Connection, Operation, OperationOutcome], tuple[OperationOutcome, bool | None]
]
"""What follows from an outcome; returns the one to keep, and the result of a verification."""

REPORT_SECONDS = 1.0
"""Shortest pause between two reports of an operation: a view shows no more."""


def claim_operation(
    context: Context,
    operation_id: str,
    *,
    node: str,
    worker: WorkerIdentity,
    protocol: int = PROTOCOL,
) -> OperationClaimReply:
    """Take on an operation that was given to this node; only the first of several claims succeeds.

    Raises:
        NotFoundError: there is no such operation.
        ConflictError: it was given to another node, runs already, or has ended; another worker
            serves the node; or the sender's protocol lacks a field of the reply.
    """
    with context.database.write() as connection:
        operation = lock_operation(connection, operation_id)
        check_worker(connection, node, worker)
        if operation.state != OperationState.QUEUED or operation.node != node:
            raise ConflictError(
                f"operation {operation_id} is {operation.state} and not for {node} to begin"
            )
        fence = operation.fence + 1
        move(
            context,
            connection,
            operation_to(
                operation_id,
                OperationState.RUNNING,
                fence=fence,
                progress=None,
                **OPERATION_LEASES.claim(context.now()),
            ),
            event=OperationStarted(
                **identity(operation_id, operation.kind, operation.checkpoint_id), fence=fence
            ),
            message=f"{node} begins to {describe(operation.kind, operation.checkpoint_id)}",
            actor=Actor(node),
            subject=Subject(operation.job_id, node=node),
        )
        reply = OperationClaimReply(
            task=operation.task,
            storage=operation.storage,
            fence=fence,
            report_seconds=max(context.settings.report_seconds, REPORT_SECONDS),
        )
        if protocol < PROTOCOL:
            check_reply(reply)  # in the transaction, so that a refusal leaves it unclaimed
    return reply


def report_operation(
    context: Context, operation_id: str, report: OperationReport, *, apply: ApplyOutcome
) -> OperationReportReply:
    """Renew the lease of an operation, and store its progress or its outcome.

    Args:
        context: the server's surroundings.
        operation_id: the operation.
        report: what its node reports.
        apply: what follows from an outcome, in the same transaction.

    Raises:
        NotFoundError: there is no such operation.
        ConflictError: another claim has outrun this one, or the operation has ended.
    """
    with context.database.write() as connection:
        operation = lock_operation(connection, operation_id)
        check_fence(
            (operation.state, operation.node, operation.fence),
            (OperationState.RUNNING, report.node, report.fence),
            refusal=f"operation {operation_id} is no longer this node's: it is {operation.state}",
        )
        if report.outcome is not None:
            _end(context, connection, operation, report.outcome, node=report.node, apply=apply)
        else:
            _note(context, connection, operation, report.progress, node=report.node)
    return OperationReportReply(ended=report.outcome is not None)


def lock_operation(connection: Connection, operation_id: str) -> Operation:
    """Lock an operation's job, where it is still there, and the operation; return its row.

    Raises:
        NotFoundError: there is no such operation.
    """
    job_id = connection.scalar(select(operations.c.job_id).where(operations.c.id == operation_id))
    if job_id is None:
        raise NotFoundError(f"no operation has the id {operation_id!r}")
    lock_job_if_there(connection, job_id)
    query = Operation.select().where(operations.c.id == operation_id).with_for_update()
    return Operation.one(connection, query)


def lock_job_if_there(connection: Connection, job_id: str) -> None:
    """Lock the job of an operation, which outlives it."""
    try:
        lock_job(connection, job_id)
    except NotFoundError:
        return


def _note(
    context: Context,
    connection: Connection,
    operation: Operation,
    progress: OperationProgress | None,
    *,
    node: str,
) -> None:
    changed = progress is not None and progress != operation.progress
    values = OPERATION_LEASES.renewal(context.now()) | ({"progress": progress} if changed else {})
    connection.execute(update(operations).where(operations.c.id == operation.id).values(values))
    if progress is not None and changed:
        notify(
            context,
            connection,
            Subject(operation.job_id, node=node),
            OperationProgressed(
                **identity(operation.id, operation.kind, operation.checkpoint_id),
                progress=progress,
            ),
        )


def _end(
    context: Context,
    connection: Connection,
    operation: Operation,
    outcome: OperationOutcome,
    *,
    node: str,
    apply: ApplyOutcome,
) -> None:
    outcome, ok = apply(context, connection, operation, outcome)
    end_operation(
        context,
        connection,
        operation,
        OperationState(outcome.outcome),
        message=outcome.message,
        actor=Actor(node),
        ok=ok,
        outcome=outcome,
        **OPERATION_LEASES.renewal(context.now()),
    )

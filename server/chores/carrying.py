"""What nodes say of chores: claim, report how far, report the end."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select, update

from server.chores.queue import describe, end_chore, identity
from server.chores.recovery import enter_recovered
from server.context import Context
from server.database.rows import Chore
from server.database.tables import checkpoints, chores
from server.errors import ConflictError, NotFoundError
from server.events.store import append_event
from server.leases import CHORE_LEASES, check_fence
from server.lifecycle import chore_to, lock_job, move
from server.nodes.workers import check_worker
from server.subject import Actor, Subject
from trainyard.protocol.chores import ChoreKind, ChoreOutcome, ChoreProgress, Verification
from trainyard.protocol.rest.event_data import ChoreProgressed, ChoreStarted
from trainyard.protocol.states import ChoreState
from trainyard.protocol.worker_messages import (
    ChoreClaimReply,
    ChoreReport,
    ChoreReportReply,
    WorkerIdentity,
)

REPORT_SECONDS = 1.0
"""Shortest pause between two reports of a chore: nobody needs to see more."""


def claim_chore(
    context: Context, chore_id: str, *, node: str, worker: WorkerIdentity | None = None
) -> ChoreClaimReply:
    """Take on a chore that was given to this node; only the first of several claims succeeds.

    Raises:
        NotFoundError: there is no such chore.
        ConflictError: it was given to another node, runs already, or has ended; or another worker
            serves the node.
    """
    with context.database.write() as connection:
        chore = lock_chore(connection, chore_id)
        check_worker(connection, node, worker)
        if chore.state != ChoreState.QUEUED or chore.node != node:
            raise ConflictError(f"chore {chore_id} is {chore.state} and not for {node} to begin")
        fence = chore.fence + 1
        move(
            context,
            connection,
            chore_to(
                chore_id,
                ChoreState.RUNNING,
                fence=fence,
                progress=None,
                **CHORE_LEASES.claim(context.now()),
            ),
            event=ChoreStarted(**identity(chore_id, chore.kind, chore.checkpoint_id), fence=fence),
            message=f"{node} begins to {describe(chore.kind, chore.checkpoint_id)}",
            actor=Actor(node),
            subject=Subject(chore.job_id, node=node),
        )
    return ChoreClaimReply(
        task=chore.task,
        storage=chore.storage,
        fence=fence,
        report_seconds=max(context.settings.report_seconds, REPORT_SECONDS),
    )


def report_chore(context: Context, chore_id: str, report: ChoreReport) -> ChoreReportReply:
    """Renew the lease of a chore and note how far it is, or how it ended.

    Raises:
        NotFoundError: there is no such chore.
        ConflictError: another claim has outrun this one, or the chore has ended.
    """
    with context.database.write() as connection:
        chore = lock_chore(connection, chore_id)
        check_fence(
            (chore.state, chore.node, chore.fence),
            (ChoreState.RUNNING, report.node, report.fence),
            refusal=f"chore {chore_id} is no longer this node's: it is {chore.state}",
        )
        if report.outcome is not None:
            _end(context, connection, chore, report.outcome, node=report.node)
        else:
            _note(context, connection, chore, report.progress, node=report.node)
    return ChoreReportReply(ended=report.outcome is not None)


def lock_chore(connection: Connection, chore_id: str) -> Chore:
    """Lock a chore's job, where it is still there, and the chore; return its row.

    Raises:
        NotFoundError: there is no such chore.
    """
    job_id = connection.scalar(select(chores.c.job_id).where(chores.c.id == chore_id))
    if job_id is None:
        raise NotFoundError(f"no chore has the id {chore_id!r}")
    lock_job_if_there(connection, job_id)
    query = Chore.select().where(chores.c.id == chore_id).with_for_update()
    return Chore.one(connection, query)


def lock_job_if_there(connection: Connection, job_id: str) -> None:
    """Lock the job of a chore, which outlives it."""
    try:
        lock_job(connection, job_id)
    except NotFoundError:
        return


def _note(
    context: Context,
    connection: Connection,
    chore: Chore,
    progress: ChoreProgress | None,
    *,
    node: str,
) -> None:
    changed = progress is not None and progress != chore.progress
    values = CHORE_LEASES.renewal(context.now()) | ({"progress": progress} if changed else {})
    connection.execute(update(chores).where(chores.c.id == chore.id).values(values))
    if progress is not None and changed:
        append_event(
            context,
            connection,
            ChoreProgressed(
                **identity(chore.id, chore.kind, chore.checkpoint_id),
                progress=progress,
            ),
            message=f"{chore.kind}: {progress.doing}",
            actor=Actor(node),
            subject=Subject(chore.job_id, node=node),
        )


def _end(
    context: Context, connection: Connection, chore: Chore, outcome: ChoreOutcome, *, node: str
) -> None:
    ok = None
    state = ChoreState(outcome.outcome)
    if state == ChoreState.SUCCEEDED and chore.checkpoint_id is not None:
        if chore.kind == ChoreKind.DELETE:
            connection.execute(
                delete(checkpoints).where(
                    checkpoints.c.id == chore.checkpoint_id,
                    checkpoints.c.deleting_since.is_not(None),
                )
            )
        elif outcome.verification is not None:
            _note_verification(context, connection, chore.checkpoint_id, outcome.verification)
            ok = outcome.verification.ok
    if state == ChoreState.SUCCEEDED and chore.kind == ChoreKind.RECOVER:
        enter_recovered(context, connection, chore, outcome.commits)
        outcome = outcome.model_copy(update={"commits": ()})  # the catalog holds them now
    end_chore(
        context,
        connection,
        chore,
        state,
        message=outcome.message,
        actor=Actor(node),
        ok=ok,
        outcome=outcome,
        **CHORE_LEASES.renewal(context.now()),
    )


def _note_verification(
    context: Context, connection: Connection, checkpoint_id: str, found: Verification
) -> None:
    """Keep what was found; that all was loaded once stays known after a scrub without a fault."""
    before = connection.scalar(
        select(checkpoints.c.verification).where(checkpoints.c.id == checkpoint_id)
    )
    if found.ok and found.loaded_at is None and before is not None and before.ok:
        loads = ("loaded_at", "loaded_on", "tensors")
        found = found.model_copy(update={name: getattr(before, name) for name in loads})
    connection.execute(
        update(checkpoints)
        .where(checkpoints.c.id == checkpoint_id)
        .values(verified=found.ok, verification=found, checked_at=context.now())
    )

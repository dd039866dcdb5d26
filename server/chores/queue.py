"""Chores as rows: made with what decides them, looked at, and taken back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, insert

from server.context import Context
from server.database.rows import Chore, JobHead
from server.database.tables import chores
from server.errors import NotFoundError
from server.events.store import append_event
from server.lifecycle import chore_to, move
from server.subject import Actor, Subject
from trainyard.protocol.chores import LOOKS, ChoreKind, ChoreTask
from trainyard.protocol.rest.chores import ChoreView
from trainyard.protocol.rest.event_data import ChoreEnded, ChoreQueued
from trainyard.protocol.states import OPEN_CHORE_STATES, ChoreState


def queue_chore(
    context: Context,
    connection: Connection,
    task: ChoreTask,
    *,
    job: JobHead,
    checkpoint_id: str | None,
    actor: Actor,
    reason: str,
) -> str:
    """Store a chore and return its id, or that of the open one that does the same.

    Args:
        context: the server's surroundings.
        connection: a transaction that holds the job's lock.
        task: what a node is to do.
        job: the job.
        checkpoint_id: the checkpoint; None where all of the job are meant.
        actor: who asks for it.
        reason: why.
    """
    if checkpoint_id is not None and (open_one := _same_one(connection, checkpoint_id, task)):
        return open_one
    chore_id = context.new_id()
    row = {
        "id": chore_id,
        "kind": task.kind.value,
        "state": ChoreState.QUEUED.value,
        "job_id": job.id,
        "job_name": job.name,
        "checkpoint_id": checkpoint_id,
        "actor": actor.name,
        "reason": reason,
        "task": task,
        "storage": job.storage,
        "fence": 0,
        "created_at": context.now(),
    }
    connection.execute(insert(chores).values(row))
    append_event(
        context,
        connection,
        ChoreQueued(**identity(chore_id, task.kind, checkpoint_id), reason=reason),
        message=describe(task.kind, checkpoint_id) + (reason and f": {reason}"),
        actor=actor,
        subject=Subject(job.id),
    )
    return chore_id


def describe(kind: str, checkpoint_id: str | None) -> str:
    """Return what a chore does, as its events say it."""
    return f"{kind} {checkpoint_id or 'all checkpoints'}"


def identity(chore_id: str, kind: str, checkpoint_id: str | None) -> dict[str, Any]:
    """Return the part of an event's data that says which chore it tells of."""
    return {"chore_id": chore_id, "kind": kind, "checkpoint_id": checkpoint_id}


def open_chores(
    connection: Connection, kinds: Collection[ChoreKind], *where: ColumnElement[bool]
) -> Sequence[Chore]:
    """Return the chores of some kinds that have not ended, the oldest first."""
    found = Chore.select().where(
        chores.c.kind.in_(sorted(kinds)), chores.c.state.in_(sorted(OPEN_CHORE_STATES)), *where
    )
    return Chore.all(connection, found.order_by(chores.c.id))


def _same_one(connection: Connection, checkpoint_id: str, task: ChoreTask) -> str | None:
    """Return the id of the open chore that does the same with a checkpoint."""
    found = open_chores(connection, {task.kind}, chores.c.checkpoint_id == checkpoint_id)
    return next((row.id for row in found if row.task == task), None)


def cancel_looks(
    context: Context,
    connection: Connection,
    *,
    job_id: str,
    checkpoint_id: str | None,
    actor: Actor,
) -> None:
    """Take back the open verifications of a checkpoint, or of all of a job, that is to go."""
    where = [chores.c.job_id == job_id]
    if checkpoint_id is not None:
        where.append(chores.c.checkpoint_id == checkpoint_id)
    for chore in open_chores(connection, LOOKS, *where):
        end_chore(
            context,
            connection,
            chore,
            ChoreState.CANCELLED,
            message="the checkpoint is to be deleted",
            actor=actor,
        )


def end_chore(
    context: Context,
    connection: Connection,
    chore: Chore,
    state: ChoreState,
    *,
    message: str,
    actor: Actor,
    ok: bool | None = None,
    **values: Any,
) -> None:
    """Move a chore to an end, with its event; `ok` is the result of a verification.

    Raises:
        IllegalMoveError: it has ended already.
    """
    move(
        context,
        connection,
        chore_to(chore.id, state, ended_at=context.now(), **values),
        event=ChoreEnded(**identity(chore.id, chore.kind, chore.checkpoint_id), state=state, ok=ok),
        message=f"{describe(chore.kind, chore.checkpoint_id)} {state}: {message}",
        actor=actor,
        subject=Subject(chore.job_id, node=chore.node),
    )


def read_chore(connection: Connection, chore_id: str) -> ChoreView:
    """Return one chore.

    Raises:
        NotFoundError: nothing has this id.
    """
    row = Chore.one_or_none(connection, Chore.select().where(chores.c.id == chore_id))
    if row is None:
        raise NotFoundError(f"no chore has the id {chore_id!r}")
    return chore_view(row)


def list_chores(
    connection: Connection,
    *,
    job_id: str | None,
    checkpoint_id: str | None,
    open_only: bool,
    before: str | None,
    limit: int,
) -> list[ChoreView]:
    """Return at most `limit` chores before an id, the newest first."""
    query = Chore.select().order_by(chores.c.id.desc()).limit(limit)
    if job_id is not None:
        query = query.where(chores.c.job_id == job_id)
    if checkpoint_id is not None:
        query = query.where(chores.c.checkpoint_id == checkpoint_id)
    if open_only:
        query = query.where(chores.c.state.in_(sorted(OPEN_CHORE_STATES)))
    if before is not None:
        query = query.where(chores.c.id < before)
    return [chore_view(row) for row in Chore.all(connection, query)]


def chore_view(row: Chore) -> ChoreView:
    """Return the view of a chore's row."""
    return ChoreView(
        id=row.id,
        kind=row.kind,
        state=row.state,
        job_id=row.job_id,
        job_name=row.job_name,
        checkpoint_id=row.checkpoint_id,
        actor=row.actor,
        reason=row.reason,
        waiting=row.waiting if row.state == ChoreState.QUEUED else None,
        node=row.node,
        tries=row.fence,
        progress=row.progress,
        outcome=row.outcome,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )

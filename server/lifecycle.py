"""The only writer of states: guarded moves of jobs, attempts, nodes and operations, with events.

The legal moves are data (trainyard.protocol.states); docs/lifecycle.md has their reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, bindparam, or_, select, update

from server.context import Context
from server.database.tables import attempt_nodes, attempts, jobs, operations
from server.errors import ConflictError, NotFoundError
from server.events.notices import forget
from server.events.store import NewEvent, append_event, append_events
from trainyard.protocol.rest.event_data import OperationEnded
from trainyard.protocol.states import (
    ATTEMPT_MOVES,
    ATTEMPT_NODE_MOVES,
    JOB_MOVES,
    OPERATION_MOVES,
    AttemptNodeState,
    AttemptState,
    JobState,
    OperationState,
    sources,
)

_GROUPLESS: Mapping[str, None] = {"demand": None}
"""Out of its group: the next launch of a job may need something else, and its reason is its own."""


class IllegalMoveError(ConflictError):
    """The record is not in a state from which it may make this move."""


@dataclass(frozen=True)
class Move:
    """One record, its target state, and the columns that change with it."""

    what: str
    table: Table
    where: ColumnElement[bool]
    target: StrEnum
    legal_from: Collection[StrEnum]
    values: Mapping[str, Any]


def job_to(
    job_id: str, target: JobState, *, only_from: frozenset[JobState] | None = None, **values: Any
) -> Move:
    """Return the move of a job; `only_from` narrows the states that the table allows."""
    legal = sources(JOB_MOVES, target)
    values = {**values, **_GROUPLESS}
    narrowed = legal if only_from is None else legal & only_from
    return Move(f"job {job_id}", jobs, jobs.c.id == job_id, target, narrowed, values)


def attempt_to(attempt_id: str, target: AttemptState, **values: Any) -> Move:
    """Return the move of an attempt."""
    where, legal = attempts.c.id == attempt_id, sources(ATTEMPT_MOVES, target)
    return Move(f"attempt {attempt_id}", attempts, where, target, legal, values)


def node_to(attempt_id: str, node: str, target: AttemptNodeState, **values: Any) -> Move:
    """Return the move of one node's share of an attempt."""
    where = and_(attempt_nodes.c.attempt_id == attempt_id, attempt_nodes.c.node == node)
    legal = sources(ATTEMPT_NODE_MOVES, target)
    what = f"node {node} of attempt {attempt_id}"
    return Move(what, attempt_nodes, where, target, legal, values)


def operation_to(operation_id: str, target: OperationState, **values: Any) -> Move:
    """Return the move of an operation."""
    where, legal = operations.c.id == operation_id, sources(OPERATION_MOVES, target)
    return Move(f"operation {operation_id}", operations, where, target, legal, values)


def move(context: Context, connection: Connection, event: NewEvent | None, *moves: Move) -> None:
    """Carry out moves of one transaction, and store their event.

    Raises:
        IllegalMoveError: a record is in a state from which the move is illegal. The caller lets it
            end the transaction, so that none of the moves takes effect.
    """
    for each in moves:
        _carry_out(connection, each)
    if event is None:
        return
    if isinstance(event.data, OperationEnded) and event.subject.job_id is not None:
        forget(connection, event.subject.job_id, part=event.data.operation_id)
    append_event(context, connection, event)


def move_jobs(
    context: Context,
    connection: Connection,
    target: JobState,
    rows: Sequence[Mapping[str, Any]],
    events: Sequence[NewEvent],
) -> None:
    """Carry out the same move of several jobs by one statement, and store their events.

    Args:
        context: the server's surroundings.
        connection: a transaction that holds the locks of the jobs.
        target: the state of all of them.
        rows: the id of each job and the columns that change with it, the same for all.
        events: what happened.

    Raises:
        IllegalMoveError: a job is in a state from which the move is illegal.
    """
    # Not IN: its list cannot be expanded in a statement with several sets of parameters.
    legal = or_(*(jobs.c.state == source for source in sorted(sources(JOB_MOVES, target))))
    moved = update(jobs).where(jobs.c.id == bindparam("job"), legal)
    values: dict[str, Any] = {n: bindparam(f"new_{n}") for n in rows[0] if n != "id"}
    changed = connection.execute(
        moved.values(state=target.value, **_GROUPLESS, **values),
        [{"job": row["id"]} | {f"new_{name}": row[name] for name in values} for row in rows],
    )
    if changed.rowcount != len(rows):
        raise IllegalMoveError(
            f"{len(rows) - changed.rowcount} of {len(rows)} jobs cannot become {target}"
        )
    append_events(context, connection, events)


_LOCK_JOB = (
    select(jobs.c.id).where(jobs.c.id == bindparam("job_id")).with_for_update(key_share=True)
)


def lock_job(connection: Connection, job_id: str) -> None:
    """Block other writers of this job's records until this transaction ends.

    The first statement of every transaction that moves a job, its attempts or their nodes: two
    nodes that end at the same time see each other's end, and transactions cannot deadlock. The mode
    (FOR NO KEY UPDATE) lets inserts of rows that reference the job pass. SQLite has one writer.

    Raises:
        NotFoundError: there is no such job.
    """
    if connection.execute(_LOCK_JOB, {"job_id": job_id}).one_or_none() is None:
        raise NotFoundError(f"no job has the id {job_id!r}")


def check_job(connection: Connection, job_id: str) -> None:
    """Check that a job exists.

    Raises:
        NotFoundError: no job has this id.
    """
    found = select(jobs.c.id).where(jobs.c.id == job_id)
    if connection.execute(found).one_or_none() is None:
        raise NotFoundError(f"no job has the id {job_id!r}")


def lock_job_of(connection: Connection, attempt_id: str) -> str:
    """Lock the job of an attempt, and return its id.

    Raises:
        NotFoundError: there is no such attempt.
    """
    job_id = connection.scalar(select(attempts.c.job_id).where(attempts.c.id == attempt_id))
    if job_id is None:
        raise NotFoundError(f"no attempt has the id {attempt_id!r}")
    lock_job(connection, job_id)
    return str(job_id)


def _carry_out(connection: Connection, move: Move) -> None:
    state = move.table.c.state
    # Holds at READ COMMITTED: after a concurrent move the UPDATE tests the new state.
    changed = connection.execute(
        update(move.table)
        .where(move.where, state.in_(sorted(move.legal_from)))
        .values(state=move.target.value, **move.values)
    )
    if changed.rowcount == 1:
        return
    present = connection.scalar(select(state).where(move.where))
    if present is None:
        raise NotFoundError(f"there is no {move.what}")
    raise IllegalMoveError(f"{move.what} is {present} and cannot become {move.target}")

"""The only writer of states: guarded moves of jobs, attempts, nodes, operations, node requests.

The legal moves are data (trainyard.protocol.states); docs/lifecycle.md explains the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from sqlalchemy import (
    ClauseElement,
    Connection,
    Table,
    Update,
    bindparam,
    false,
    or_,
    select,
    update,
)

from server.core.audit.request_rows import note_project
from server.core.context import Context
from server.core.database.source_tables import node_requests
from server.core.database.tables import attempt_nodes, attempts, jobs, operations
from server.core.errors import ConflictError, NotFoundError
from server.core.events.notices import forget
from server.core.events.store import NewEvent, append_event, append_events
from server.core.visibility.scope import Scope
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.event_data import OperationEnded
from trainyard.protocol.states import (
    ATTEMPT_MOVES,
    ATTEMPT_NODE_MOVES,
    JOB_MOVES,
    NODE_REQUEST_MOVES,
    OPERATION_MOVES,
    AttemptNodeState,
    AttemptState,
    JobState,
    NodeRequestState,
    OperationState,
    sources,
)

_GROUPLESS: Mapping[str, None] = {"demand": None}
"""Columns that remove a job from its group. Each move of a job sets them, because the job then has
its own reason, and its next launch may have another demand.
"""


class IllegalMoveError(ConflictError):
    """The move is illegal from the current state of the record."""


@dataclass(frozen=True)
class Move:
    """A state change of one record: target state, and columns that change with the state."""

    what: str
    table: Table
    key: Mapping[str, str]
    """Values of the columns that identify the record."""
    target: StrEnum
    legal_from: frozenset[StrEnum]
    values: Mapping[str, Any]

    def check(self, present: StrEnum) -> None:
        """Raise `IllegalMoveError` if the move is illegal from the state `present`."""
        if present not in self.legal_from:
            raise IllegalMoveError(f"{self.what} is {present} and cannot become {self.target}")


def job_to(
    job_id: str, target: JobState, *, only_from: frozenset[JobState] | None = None, **values: Any
) -> Move:
    """Return a move of a job; `only_from` narrows the states from which the move is legal."""
    legal = sources(JOB_MOVES, target)
    values = {**values, **_GROUPLESS}
    narrowed = legal if only_from is None else legal & only_from
    return Move(f"job {job_id}", jobs, {"id": job_id}, target, narrowed, values)


def attempt_to(attempt_id: str, target: AttemptState, **values: Any) -> Move:
    """Return a move of an attempt."""
    legal = sources(ATTEMPT_MOVES, target)
    return Move(f"attempt {attempt_id}", attempts, {"id": attempt_id}, target, legal, values)


def node_to(attempt_id: str, node: str, target: AttemptNodeState, **values: Any) -> Move:
    """Return a move of one node's share of an attempt."""
    key = {"attempt_id": attempt_id, "node": node}
    legal = sources(ATTEMPT_NODE_MOVES, target)
    what = f"node {node} of attempt {attempt_id}"
    return Move(what, attempt_nodes, key, target, legal, values)


def operation_to(operation_id: str, target: OperationState, **values: Any) -> Move:
    """Return a move of an operation."""
    legal, key = sources(OPERATION_MOVES, target), {"id": operation_id}
    return Move(f"operation {operation_id}", operations, key, target, legal, values)


def move(context: Context, connection: Connection, event: NewEvent | None, *moves: Move) -> None:
    """Carry out moves in one transaction, and store the event; forget an ended operation's notice.

    Raises:
        NotFoundError: a record does not exist.
        IllegalMoveError: a move is illegal from the state of its record. Each error must end the
            transaction, so that no move takes effect.
    """
    for each in moves:
        _carry_out(connection, each)
    if event is None:
        return
    if isinstance(event.data, OperationEnded) and event.subject.job_id is not None:
        forget(connection, event.subject.job_id, part=event.data.operation_id)
    append_event(context, connection, event)


def move_all(
    context: Context, connection: Connection, *, moves: Sequence[Move], events: Sequence[NewEvent]
) -> None:
    """Carry out moves of different records of locked jobs, and store the events for the moves.

    Moves of the same kind share one statement, so the values of columns must not be SQL
    expressions.

    Raises:
        IllegalMoveError: a move is illegal from the state of its record.
    """
    alike: dict[tuple[Any, ...], list[Move]] = {}
    for each in moves:
        kind = (each.table, each.target, each.legal_from, (*each.key,), (*each.values,))
        alike.setdefault(kind, []).append(each)
    for (table, target, legal_from, key, _), some in alike.items():
        rows = [{**each.key, **each.values} for each in some]
        _move_all(connection, table, target=target, legal_from=legal_from, rows=rows, key=key)
    append_events(context, connection, events)


def move_jobs(
    context: Context,
    connection: Connection,
    *,
    target: JobState,
    rows: Sequence[Mapping[str, Any]],
    events: Sequence[NewEvent],
) -> None:
    """Carry out the same move for several locked jobs in one statement, and store the events.

    Each row has the id of a job and its changed columns; all rows have the same columns.

    Raises:
        IllegalMoveError: the move is illegal from the state of a job.
    """
    legal, touched = sources(JOB_MOVES, target), {**_GROUPLESS, "updated_at": context.now()}
    _move_all(
        connection, jobs, target=target, legal_from=legal, rows=[{**row, **touched} for row in rows]
    )
    append_events(context, connection, events, touched=True)


def move_requests(
    connection: Connection, target: NodeRequestState, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Carry out the same move for several requests of a locked source in one statement.

    Each row has the id of a request and its changed columns; all rows have the same columns.

    Raises:
        IllegalMoveError: the move is illegal from the state of a request.
    """
    legal = sources(NODE_REQUEST_MOVES, target)
    _move_all(connection, node_requests, target=target, legal_from=legal, rows=rows)


def _move_all(
    connection: Connection,
    table: Table,
    *,
    target: StrEnum,
    legal_from: frozenset[StrEnum],
    rows: Sequence[Mapping[str, Any]],
    key: tuple[str, ...] = ("id",),
) -> None:
    given = [{**row, "state": target.value} for row in rows]
    for each in given:
        # The UPDATE does not set key columns.
        each |= {f"of_{name}": each.pop(name) for name in key}
    changed = connection.execute(_guarded(table, key, legal_from), given)
    if changed.rowcount != len(rows):
        raise IllegalMoveError(
            f"{len(rows) - changed.rowcount} of {len(rows)} {table.name} cannot become {target}"
        )


_PROJECT = select(jobs.c.project).where(jobs.c.id == bindparam("job_id"))
_LOCK_JOB = (
    select(jobs.c.id).where(jobs.c.id == bindparam("job_id")).with_for_update(key_share=True)
)
_LOCK_JOBS_OF = (
    select(jobs.c.id, attempts.c.id)
    .join(attempts, attempts.c.job_id == jobs.c.id)
    .where(attempts.c.id.in_(bindparam("attempt_ids", expanding=True)))
    .order_by(jobs.c.id)  # prevents deadlocks between transactions that lock several jobs
    .with_for_update(key_share=True, of=jobs)
)
_LOCK_FREE_JOBS_OF = _LOCK_JOBS_OF.with_for_update(key_share=True, of=jobs, skip_locked=True)


def lock_job(connection: Connection, job_id: str) -> None:
    """Block other writers of a job's records until this transaction ends.

    Every transaction that moves a job, its attempts or its shares calls this first. So if two
    shares end at the same time, the second transaction sees the end of the first share. In
    addition, transactions cannot deadlock. The lock mode FOR NO KEY UPDATE allows inserts of rows
    that reference the job. SQLite has only one writer, so it needs no lock.

    Raises:
        NotFoundError: no job has this id.
    """
    if connection.execute(_LOCK_JOB, {"job_id": job_id}).one_or_none() is None:
        raise NotFoundError(f"no job has the id {job_id!r}")


def check_job(
    connection: Connection,
    job_id: str,
    *,
    scope: Scope,
    permission: Permission = Permission.JOBS_READ,
) -> str:
    """Check that a job exists, and that the caller has a permission on it; return its project.

    Raises:
        NotFoundError: no job has this id, or the caller does not see the job.
        ForbiddenError: the caller sees the job, and lacks the permission.
    """
    project: str | None = connection.scalar(_PROJECT, {"job_id": job_id})
    missing = NotFoundError(f"no job has the id {job_id!r}")
    if project is None:
        raise missing
    note_project(project)
    scope.check(project, permission, missing=missing)
    return project


def still_sees(context: Context, job_id: str, *, scope: Scope) -> Callable[[Scope], bool]:
    """Return whether a later scope of the caller sees a job, as a function of that scope.

    Raises:
        NotFoundError: no job has this id, or the caller does not see the job.
    """
    with context.database.read() as connection:
        project = check_job(connection, job_id, scope=scope)
    return lambda later: later.sees(project)


def lock_own_job(
    connection: Connection, job_id: str, *, scope: Scope, permission: Permission
) -> None:
    """Lock a job as `lock_job` does, for a caller with a permission on it.

    A job never changes its project, so the permission is checked without a lock.

    Raises:
        NotFoundError: no job has this id, or the caller does not see the job.
        ForbiddenError: the caller sees the job, and lacks the permission.
    """
    check_job(connection, job_id, scope=scope, permission=permission)
    lock_job(connection, job_id)


def lock_job_of(connection: Connection, attempt_id: str) -> str:
    """Lock the job of an attempt; return the job's id, or raise `NotFoundError`."""
    locked = lock_jobs_of(connection, [attempt_id])
    if attempt_id not in locked:
        raise no_attempt(attempt_id)
    return locked[attempt_id]


def lock_jobs_of(
    connection: Connection, attempt_ids: Sequence[str], *, waits: bool = True
) -> Mapping[str, str]:
    """Lock the jobs of the known attempts, and return the ids of these jobs by attempt id.

    If `waits` is False, attempts whose job another transaction has locked are omitted.
    """
    statement = _LOCK_JOBS_OF if waits else _LOCK_FREE_JOBS_OF
    rows = connection.execute(statement, {"attempt_ids": attempt_ids})
    return {attempt_id: job_id for job_id, attempt_id in rows}


def no_attempt(attempt_id: str) -> NotFoundError:
    """Return the error for an unknown attempt."""
    return NotFoundError(f"no attempt has the id {attempt_id!r}")


def _carry_out(connection: Connection, move: Move) -> None:
    key = {f"of_{name}": value for name, value in move.key.items()}
    computed = {n: v for n, v in move.values.items() if isinstance(v, ClauseElement)}
    given = {n: v for n, v in move.values.items() if n not in computed}
    statement = _guarded(move.table, tuple(move.key), move.legal_from)
    if computed:
        statement = statement.values(computed)
    # After a concurrent move, an UPDATE at READ COMMITTED checks the new state.
    changed = connection.execute(statement, {"state": move.target.value} | given | key)
    if changed.rowcount == 1:
        return
    of_key = (move.table.c[name] == value for name, value in move.key.items())
    present = connection.scalar(select(move.table.c.state).where(*of_key))
    if present is None:
        raise NotFoundError(f"there is no {move.what}")
    raise IllegalMoveError(f"{move.what} is {present} and cannot become {move.target}")


@cache
def _guarded(table: Table, key: tuple[str, ...], legal_from: frozenset[StrEnum]) -> Update:
    """Return an UPDATE that has an effect only if the record is in one of the states `legal_from`.

    The caller passes the columns to set as parameters of the statement.
    """
    of_key = (table.c[name] == bindparam(f"of_{name}") for name in key)
    # The list of an IN is expanded at each execution, which fails with several parameter sets.
    is_legal = or_(false(), *(table.c.state == state for state in sorted(legal_from)))
    return update(table).where(*of_key, is_legal)

"""Reads from the catalog, and the views of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Connection, Table, and_, or_, select

from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.database.tables import checkpoints, jobs, operations
from server.core.errors import NotFoundError
from server.core.lifecycle import check_job
from server.core.visibility.scope import Scope
from server.jobs.attempts.lineage import Lineage, attempts_of, lineage_of
from server.jobs.operations.queries import open_operations
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.operations import FailedTries, OperationKind, Verification
from trainyard.protocol.rest.checkpoints import (
    AutoExportView,
    CheckpointDetails,
    CheckpointView,
    DescendantView,
)
from trainyard.protocol.states import OperationState
from trainyard.run.checkpoints.checkpoint_names import split_checkpoint_id
from trainyard.run.checkpoints.program_manifest import ProgramManifest

MAX_DESCENDANTS = 100


@dataclass(frozen=True, slots=True)
class ListedCheckpoint(TypedRow):
    """The columns of a checkpoint for a list."""

    table: ClassVar[Table] = checkpoints
    id: str
    job_id: str
    attempt: int
    step: int
    kind: str
    root: str
    path: str
    size: int
    files: int
    layout: str
    dtype: str | None
    save_seconds: float
    stall_seconds: float | None
    writers: int | None
    write_seconds: float | None
    parent_id: str | None
    created_at: datetime
    verification: Verification | None
    pinned_at: datetime | None
    pinned_by: str | None
    deleting_since: datetime | None


@dataclass(frozen=True, slots=True)
class DetailedCheckpoint(ListedCheckpoint):
    """A checkpoint with its manifest, which lists omit."""

    manifest: Manifest | ProgramManifest


def list_checkpoints(
    context: Context, job_id: str, *, scope: Scope, after: str | None = None, limit: int = 50
) -> list[CheckpointView]:
    """Return at most `limit` checkpoints of a job, newest first, that follow the id `after`.

    Raises:
        NotFoundError: there is no such job.
    """
    table = checkpoints.c
    query = ListedCheckpoint.select().where(table.job_id == job_id)
    if after is not None:
        _, attempt, step = split_checkpoint_id(after)
        older = or_(table.attempt < attempt, and_(table.attempt == attempt, table.step < step))
        query = query.where(older)
    with context.database.read() as connection:
        check_job(connection, job_id, scope=scope)
        newest_first = query.order_by(table.attempt.desc(), table.step.desc())
        rows = ListedCheckpoint.all(connection, newest_first.limit(limit))
        lineage = lineage_of(attempts_of(connection, job_id))
        failing = _failed_deletions(connection, rows)
        exports = _auto_exports(connection, rows)
    return [
        CheckpointView(**_fields(row, lineage, failing=failing, exports=exports)) for row in rows
    ]


def read_checkpoint(context: Context, checkpoint_id: str, *, scope: Scope) -> CheckpointDetails:
    """Return one checkpoint with its manifest.

    Raises:
        NotFoundError: no checkpoint has this id.
    """
    query = DetailedCheckpoint.select().join(jobs, jobs.c.id == checkpoints.c.job_id)
    query = query.where(checkpoints.c.id == checkpoint_id, scope.filter(jobs.c.project))
    with context.database.read() as connection:
        row = DetailedCheckpoint.one_or_none(connection, query)
        if row is None:
            raise NotFoundError(f"no checkpoint has the id {checkpoint_id!r}")
        lineage = lineage_of(attempts_of(connection, row.job_id))
        descendants = descendants_of(connection, checkpoint_id, scope=scope)
        failing = _failed_deletions(connection, [row])
        exports = _auto_exports(connection, [row])
    return CheckpointDetails(
        **_fields(row, lineage, failing=failing, exports=exports),
        manifest=row.manifest,
        descendants=descendants,
    )


def descendants_of(
    connection: Connection, checkpoint_id: str, *, scope: Scope
) -> tuple[DescendantView, ...]:
    """Return at most `MAX_DESCENDANTS` visible jobs that were forked from a checkpoint, oldest
    first."""
    columns = (jobs.c.id, jobs.c.name, jobs.c.fork_parts)
    query = select(*columns).where(jobs.c.forked_from == checkpoint_id)
    query = query.where(scope.filter(jobs.c.project)).order_by(jobs.c.id)
    return tuple(
        DescendantView(job_id=job_id, name=name, parts=tuple(parts))
        for job_id, name, parts in connection.execute(query.limit(MAX_DESCENDANTS))
    )


def _failed_deletions(
    connection: Connection, rows: Sequence[ListedCheckpoint]
) -> dict[str | None, FailedTries | None]:
    """Return, by checkpoint id, the record of the failed tries of each unfinished deletion."""
    marked = [row.id for row in rows if row.deleting_since is not None]
    if not marked:
        return {}
    mine = operations.c.checkpoint_id.in_(marked)
    found = open_operations(connection, {OperationKind.DELETE}, mine)
    return {row.checkpoint_id: row.failing for row in found}


def _auto_exports(
    connection: Connection, rows: Sequence[ListedCheckpoint]
) -> dict[str, AutoExportView]:
    """Return the newest automatic export of each checkpoint; checkpoints without any are omitted.

    The task is not read, so that an operation with an unreadable task still has a view.
    """
    table = operations.c
    columns = (
        *(table.checkpoint_id, table.id, table.state),
        *(table.outcome, table.failing, table.ended_at),
    )
    mine = table.checkpoint_id.in_([row.id for row in rows])
    query = select(*columns).where(mine, table.kind == OperationKind.AUTO_EXPORT)
    found = {}
    for row in connection.execute(query.order_by(table.id)):
        found[row.checkpoint_id] = AutoExportView(
            operation_id=row.id,
            state=row.state,
            result=row.outcome and row.outcome.export,
            message=_failure_of(row),
            ended_at=row.ended_at,
        )
    return found


def _failure_of(operation: Any) -> str | None:
    """Return the reason of the last failure of an operation; None if there was no failure."""
    if operation.state == OperationState.FAILED:
        # Without an outcome, the lease of the last try has expired.
        return operation.outcome.message if operation.outcome else "its node fell silent"
    return operation.failing.reason if operation.failing and not operation.ended_at else None


def _fields(
    row: ListedCheckpoint,
    lineage: Lineage,
    *,
    failing: Mapping[str | None, FailedTries | None],
    exports: Mapping[str, AutoExportView],
) -> dict[str, Any]:
    return row.values_for(CheckpointView) | {
        "place": f"{row.root}:{row.path}",
        "parent": row.parent_id,
        "on_lineage": lineage.holds(number=row.attempt, step=row.step),
        "deleting": row.deleting_since is not None,
        "not_deleted": failing.get(row.id),
        "auto_export": exports.get(row.id),
    }

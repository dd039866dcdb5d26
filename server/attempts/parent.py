"""The parent checkpoint: the one from which the next attempt of a job resumes.

The answer at placement binds. Every preview calls the same function: a resume and its options, the
loss of a cancel, the message of a fallback. Only a rollback fixes the answer earlier, at the end of
the attempt that failed (docs/lifecycle.md, 24-29).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from sqlalchemy import ColumnElement, Connection, and_, or_, select

from server.attempts.lineage import attempts_of, lineage_of
from server.database.tables import checkpoints, jobs
from server.errors import NotFoundError
from trainyard.protocol.rest.jobs import PendingLaunch

SEGMENTS_AT_ONCE = 100
"""Attempts of a lineage in one query, a condition each; the first query nearly always finds the
newest checkpoint."""


@dataclass(frozen=True, slots=True)
class ParentCheckpoint:
    """Where an attempt starts."""

    id: str | None = None
    """None for a start from scratch."""
    step: int = 0
    own: bool = False
    """Whether the job saved it itself; a fork starts from a checkpoint of another job."""
    usable: bool = True
    """Whether it may be loaded: neither damaged nor being deleted. A person may name any."""
    branch: bool = False
    """Whether newer checkpoints of the lineage are left behind."""


def parent_checkpoint(
    connection: Connection,
    job_id: str,
    *,
    named: str | None = None,
    before_step: int | None = None,
) -> ParentCheckpoint:
    """Return the checkpoint from which a job resumes now.

    That is the one that is named; else the newest usable one in the ancestry of the newest attempt:
    its own, else the one that it came from, else one before that, never one of another branch.
    A fork that has saved nothing starts again where it was forked.

    Args:
        connection: a transaction.
        job_id: a job that exists.
        named: the checkpoint of the job that was chosen, usable or not.
        before_step: the step before which it was saved; where it was forked is no answer then.

    Raises:
        NotFoundError: the job has no checkpoint of this name.
    """
    newest = _newest(connection, job_id, before_step=before_step)
    if named is not None:
        return _named(connection, job_id, named, newest)
    if newest is not None:
        return newest
    return ParentCheckpoint() if before_step is not None else _fork(connection, job_id)


def parent_of_launch(
    connection: Connection, job_id: str, pending: PendingLaunch, *, forked_from: str | None
) -> ParentCheckpoint:
    """Return the checkpoint from which a queued launch would resume now.

    A fork's launch names another job's checkpoint, which counts only until the fork has saved.

    Args:
        connection: a transaction.
        job_id: a job that exists.
        pending: its launch.
        forked_from: the checkpoint of another job from which it was forked.

    Raises:
        NotFoundError: the job has no checkpoint of the name that the launch has.
    """
    named = None if pending.checkpoint_id == forked_from else pending.checkpoint_id
    return parent_checkpoint(connection, job_id, named=named)


def _named(
    connection: Connection, job_id: str, named: str, newest: ParentCheckpoint | None
) -> ParentCheckpoint:
    row = connection.execute(
        select(checkpoints.c.step, and_(*_usable()).label("usable")).where(
            checkpoints.c.id == named, checkpoints.c.job_id == job_id
        )
    ).one_or_none()
    if row is None:
        raise NotFoundError(f"this job has no checkpoint {named!r}")
    branch = newest is not None and newest.id != named
    return ParentCheckpoint(named, row.step, own=True, usable=row.usable, branch=branch)


def _fork(connection: Connection, job_id: str) -> ParentCheckpoint:
    """Return where a fork starts; a start from scratch for other jobs."""
    row = connection.execute(
        select(jobs.c.forked_from, jobs.c.fork_step).where(jobs.c.id == job_id)
    ).one()
    if row.forked_from is None:
        return ParentCheckpoint()
    found = select(checkpoints.c.id).where(checkpoints.c.id == row.forked_from, *_usable())
    usable = connection.execute(found).one_or_none() is not None
    return ParentCheckpoint(row.forked_from, row.fork_step or 0, usable=usable)


def _newest(
    connection: Connection, job_id: str, *, before_step: int | None
) -> ParentCheckpoint | None:
    """Return the newest usable checkpoint along the lineage; None where it has none."""
    table = checkpoints.c
    query = select(table.id, table.step).where(table.job_id == job_id, *_usable())
    if before_step is not None:
        query = query.where(table.step < before_step)
    newest_first = reversed(lineage_of(attempts_of(connection, job_id)).segments)
    while segments := list(islice(newest_first, SEGMENTS_AT_ONCE)):
        held = or_(*(and_(table.attempt == s.number, table.step <= s.until) for s in segments))
        row = connection.execute(
            query.where(held).order_by(table.attempt.desc(), table.step.desc()).limit(1)
        ).one_or_none()
        if row is not None:
            return ParentCheckpoint(row.id, row.step, own=True)
    return None


def _usable() -> tuple[ColumnElement[bool], ...]:
    return checkpoints.c.deleting_since.is_(None), checkpoints.c.verified.is_not(False)

"""The parent checkpoint, from which the next attempt of a job resumes.

The checkpoint is chosen at placement. Previews call the same function: the preview and the options
of a resume, the preview of the steps that a cancel loses, and the message of a fallback. Only a
rollback chooses earlier, when the failed attempt ends (docs/lifecycle.md, 24-29).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from server.core.database.column_types import text_of
from server.core.database.tables import checkpoints, jobs
from server.core.errors import NotFoundError
from server.jobs.attempts.lineage import Lineage, attempts_of_jobs, lineage_of
from trainyard.protocol.rest.jobs import PendingLaunch

SEGMENTS_AT_ONCE = 100
"""Maximum number of attempts of a lineage in one query; each attempt adds a condition."""


@dataclass(frozen=True, slots=True)
class ParentCheckpoint:
    """The checkpoint from which an attempt starts, or a start from scratch."""

    id: str | None = None
    """Id of the checkpoint; None for a start from scratch."""
    step: int = 0
    own: bool = False
    """Whether the job itself saved the checkpoint; a fork starts from a checkpoint of another
    job."""
    usable: bool = True
    """Whether the checkpoint is neither damaged nor being deleted. A person may name an unusable
    checkpoint."""
    branch: bool = False
    """Whether the lineage has newer checkpoints, which the attempt leaves on a branch."""


def parent_checkpoint(
    connection: Connection,
    job_id: str,
    *,
    named: str | None = None,
    before_step: int | None = None,
) -> ParentCheckpoint:
    """Return the checkpoint from which a job would resume now.

    The result is the named checkpoint, or else the newest usable checkpoint in the lineage of the
    newest attempt, never a checkpoint of another branch. A fork without checkpoints of its own
    starts again from its origin.

    Args:
        connection: a transaction.
        job_id: a job that exists.
        named: id of the chosen checkpoint of the job, usable or not.
        before_step: consider only checkpoints before this step, and never the origin of a fork.

    Raises:
        NotFoundError: the job has no checkpoint with this id.
    """
    newest = newest_of_jobs(connection, [job_id], before_step=before_step)[job_id]
    if named is not None:
        return _named(connection, job_id, named=named, newest=newest)
    if newest is not None:
        return newest
    return ParentCheckpoint() if before_step is not None else _fork(connection, job_id)


def parent_of_launch(
    connection: Connection,
    job_id: str,
    pending: PendingLaunch,
    *,
    forked_from: str | None,
    newest: ParentCheckpoint | None,
) -> ParentCheckpoint:
    """Return the checkpoint from which a queued launch would resume now.

    A fork's launch names another job's checkpoint, which is used only until the fork has saved.

    Args:
        connection: a transaction.
        job_id: a job that exists.
        pending: the job's queued launch.
        forked_from: for a fork, the checkpoint of the other job.
        newest: the job's checkpoint from `newest_of_jobs`.

    Raises:
        NotFoundError: the launch names a checkpoint that the job does not have.
    """
    if pending.checkpoint_id not in {None, forked_from}:
        return _named(connection, job_id, named=pending.checkpoint_id, newest=newest)
    if newest is not None:
        return newest
    return ParentCheckpoint() if forked_from is None else _fork(connection, job_id)


def _named(
    connection: Connection, job_id: str, *, named: str, newest: ParentCheckpoint | None
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
    """Return the origin of a fork, or a start from scratch for other jobs."""
    row = connection.execute(
        select(jobs.c.forked_from, jobs.c.fork_step).where(jobs.c.id == job_id)
    ).one()
    if row.forked_from is None:
        return ParentCheckpoint()
    found = select(checkpoints.c.id).where(checkpoints.c.id == row.forked_from, *_usable())
    usable = connection.execute(found).one_or_none() is not None
    return ParentCheckpoint(row.forked_from, row.fork_step or 0, usable=usable)


def newest_of_jobs(
    connection: Connection, job_ids: Collection[str], *, before_step: int | None = None
) -> Mapping[str, ParentCheckpoint | None]:
    """Return the newest usable checkpoint in each job's lineage; None for a job without any.

    Args:
        connection: a transaction.
        job_ids: ids of jobs, at most as many as one query may list.
        before_step: consider only checkpoints before this step.
    """
    if not job_ids:
        return {}
    table = checkpoints.c
    newest_first = (table.attempt.desc(), table.step.desc())
    usable = [*_usable(), *([] if before_step is None else [table.step < before_step])]
    of_job = select(table.id).where(table.job_id == jobs.c.id, *usable).order_by(*newest_first)
    newest, newest_id = checkpoints.alias(), of_job.limit(1).correlate(jobs).scalar_subquery()
    columns = (newest.c.job_id, newest.c.id, newest.c.attempt, newest.c.step)
    query = select(*columns).select_from(jobs).join(newest, newest.c.id == newest_id)
    resumes = _resumes(connection, newest.c.dtype)
    rows = connection.execute(query.where(jobs.c.id.in_(job_ids), resumes))
    first = {row.job_id: row for row in rows}
    found: dict[str, ParentCheckpoint | None] = dict.fromkeys(job_ids)
    for job_id, keys in attempts_of_jobs(connection, first.keys()).items():
        row, lineage = first[job_id], lineage_of(keys)
        if any(s.number == row.attempt and row.step <= s.until for s in lineage.segments):
            found[job_id] = ParentCheckpoint(row.id, row.step, own=True)
        else:  # the newest checkpoint belongs to another branch
            found[job_id] = _newest_along(connection, job_id, lineage=lineage, usable=usable)
    return found


def _newest_along(
    connection: Connection,
    job_id: str,
    *,
    lineage: Lineage,
    usable: Collection[ColumnElement[bool]],
) -> ParentCheckpoint | None:
    table = checkpoints.c
    query = select(table.id, table.step).where(table.job_id == job_id, *usable)
    newest_first = reversed(lineage.segments)
    while segments := list(islice(newest_first, SEGMENTS_AT_ONCE)):
        held = or_(*(and_(table.attempt == s.number, table.step <= s.until) for s in segments))
        row = connection.execute(
            query.where(held).order_by(table.attempt.desc(), table.step.desc()).limit(1)
        ).one_or_none()
        if row is not None:
            return ParentCheckpoint(row.id, row.step, own=True)
    return None


def _resumes(connection: Connection, dtype: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the SQL condition that a job resumes from its checkpoints; some programs start
    over."""
    resume = text_of(connection, jobs.c.spec, "program", "resume")
    # Only checkpoints of programs have no `dtype`, so the specs of other jobs are not parsed.
    return or_(dtype.is_not(None), func.coalesce(resume, "") != "never")


def _usable() -> tuple[ColumnElement[bool], ...]:
    return checkpoints.c.deleting_since.is_(None), checkpoints.c.verified.is_not(False)

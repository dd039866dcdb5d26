"""The parent checkpoint, from which the next attempt of a job resumes.

The checkpoint is chosen at placement, and previews make the same choice. Only the checkpoint of a
rollback is chosen earlier, at the end of the failed attempt (docs/lifecycle-failures.md, 24-25;
docs/lifecycle-resume.md, 29).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from server.core.database.column_types import text_of
from server.core.database.tables import checkpoints, jobs
from server.core.errors import NotFoundError
from server.jobs.attempts.lineage import Lineage, attempts_of_jobs, lineage_of
from trainyard.protocol.rest.jobs import PendingLaunch

SEGMENTS_AT_ONCE = 100
"""Maximum number of segments in one query; each segment adds a condition to the query."""


@dataclass(frozen=True, slots=True)
class ParentCheckpoint:
    """The checkpoint from which an attempt starts, or a start without a cataloged checkpoint."""

    id: str | None = None
    """Id of the checkpoint; None for a start from scratch, or from `checkpoint.start_from`."""
    step: int = 0
    own: bool = False
    """Whether the job itself saved the checkpoint; a fork starts from a checkpoint of another
    job."""
    usable: bool = True
    """Whether the checkpoint is neither damaged nor being deleted. False is possible, because a
    person may name any checkpoint.
    """
    branch: bool = False
    """Whether the lineage has newer checkpoints; the attempt then leaves these checkpoints on a
    branch."""


class StartingJob(Protocol):
    """Columns of a queued job that determine where its launch starts."""

    @property
    def id(self) -> str:
        """Id of the job."""

    @property
    def forked_from(self) -> str | None:
        """Checkpoint of another job from which the job starts."""

    @property
    def fork_step(self) -> int | None:
        """Number of steps that are complete at the start of the job."""


def parent_checkpoint(
    connection: Connection,
    job_id: str,
    *,
    named: str | None = None,
    before_step: int | None = None,
) -> ParentCheckpoint:
    """Return the checkpoint from which a job would resume now.

    If `named` is given, the result is this checkpoint, even if it is not usable. Otherwise the
    result is the newest usable checkpoint in the lineage of the newest attempt. A fork without
    checkpoints of its own starts again from its origin. If `before_step` is given, only the job's
    own checkpoints before this step count.

    Raises:
        NotFoundError: the job has no checkpoint with the id `named`.
    """
    newest = newest_of_jobs(connection, [job_id], before_step=before_step)[job_id]
    return _chosen(connection, job_id, named=named, newest=newest, uses_origin=before_step is None)


def parent_of_launch(
    connection: Connection,
    job: StartingJob,
    pending: PendingLaunch,
    *,
    newest: ParentCheckpoint | None,
) -> ParentCheckpoint:
    """Return the checkpoint from which a queued launch would resume now.

    A fork's launch names another job's checkpoint, which is used only until the fork has saved a
    checkpoint. `newest` is the result of `newest_of_jobs` for the job.

    Raises:
        NotFoundError: the launch names a checkpoint that the job does not have.
    """
    named = None if pending.checkpoint_id == job.forked_from else pending.checkpoint_id
    if named is None and newest is None and job.forked_from is None:
        return ParentCheckpoint(step=job.fork_step or 0)  # without a query in the scheduler's round
    return _chosen(connection, job.id, named=named, newest=newest, uses_origin=True)


def _chosen(
    connection: Connection,
    job_id: str,
    *,
    named: str | None,
    newest: ParentCheckpoint | None,
    uses_origin: bool,
) -> ParentCheckpoint:
    """Return the named checkpoint, else the newest, else the origin if the origin may be used."""
    if named is not None:
        query = select(checkpoints.c.step, and_(*_usable()).label("usable"))
        mine = (checkpoints.c.id == named) & (checkpoints.c.job_id == job_id)
        row = connection.execute(query.where(mine)).one_or_none()
        if row is None:
            raise NotFoundError(f"this job has no checkpoint {named!r}")
        branch = newest is not None and newest.id != named
        return ParentCheckpoint(named, row.step, own=True, usable=row.usable, branch=branch)
    if newest is not None:
        return newest
    origin = select(jobs.c.forked_from, jobs.c.fork_step).where(jobs.c.id == job_id)
    row = connection.execute(origin).one()
    if row.forked_from is None:
        return ParentCheckpoint(step=row.fork_step or 0)
    if not uses_origin:
        return ParentCheckpoint()
    found = select(checkpoints.c.id).where(checkpoints.c.id == row.forked_from, *_usable())
    usable = connection.execute(found).one_or_none() is not None
    return ParentCheckpoint(row.forked_from, row.fork_step or 0, usable=usable)


def newest_of_jobs(
    connection: Connection, job_ids: Collection[str], *, before_step: int | None = None
) -> Mapping[str, ParentCheckpoint | None]:
    """Return the newest usable checkpoint in each job's lineage; None for a job without one.

    The result is also None for a program that never resumes. With `before_step`, only checkpoints
    before this step count. The ids must fit into one query.
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
    connection: Connection, job_id: str, *, lineage: Lineage, usable: list[ColumnElement[bool]]
) -> ParentCheckpoint | None:
    table = checkpoints.c
    query = select(table.id, table.step).where(table.job_id == job_id, *usable)
    newest_first = reversed(lineage.segments)
    while segments := list(islice(newest_first, SEGMENTS_AT_ONCE)):
        held = or_(*(and_(table.attempt == s.number, table.step <= s.until) for s in segments))
        ordered = query.where(held).order_by(table.attempt.desc(), table.step.desc())
        row = connection.execute(ordered.limit(1)).one_or_none()
        if row is not None:
            return ParentCheckpoint(row.id, row.step, own=True)
    return None


def _resumes(connection: Connection, dtype: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the SQL condition that a job resumes from checkpoints; some programs start over."""
    resume = text_of(connection, jobs.c.spec, "program", "resume")
    # Only checkpoints of programs have no `dtype`, so the specs of other jobs are not parsed.
    return or_(dtype.is_not(None), func.coalesce(resume, "") != "never")


def _usable() -> tuple[ColumnElement[bool], ...]:
    return checkpoints.c.deleting_since.is_(None), checkpoints.c.verified.is_not(False)

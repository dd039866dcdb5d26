"""Deletes jobs that ended long ago, and old logs of attempts, in small transactions.

Each transaction deletes a bounded part. docs/retention.md lists which rows are kept for how long.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import datetime, timedelta
from typing import Literal

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    Table,
    Text,
    and_,
    delete,
    exists,
    false,
    func,
    or_,
    select,
    tuple_,
    type_coerce,
)

from server.core.context import Context
from server.core.database.engine import Database
from server.core.database.metric_and_log_tables import (
    artifacts,
    log_blocks,
    metric_chunks,
    metric_series,
    metric_tails,
    rank_steps,
    step_digests,
)
from server.core.database.slot_tables import holdings
from server.core.database.tables import (
    attempt_nodes,
    attempts,
    checkpoints,
    events,
    idempotency_keys,
    jobs,
    operations,
)
from server.core.errors import NotFoundError
from server.core.events.notices import forget
from server.core.events.store import NewEvent, append_event
from server.core.isolation import Isolation
from server.core.lifecycle import lock_job
from server.core.subject import RETENTION, Subject
from server.jobs.operations.queries import ARE_OPEN
from trainyard.protocol.rest.event_data import JobDeleted
from trainyard.protocol.states import TERMINAL_JOB_STATES, AttemptNodeState, AttemptState

ID_LENGTH = 26
KEEP = "keep"
"""Tag of jobs that retention never deletes."""
_IS_OVER = jobs.c.state.in_(sorted(TERMINAL_JOB_STATES))
_IS_KEPT = type_coerce(jobs.c.tags, Text).contains(f'"{KEEP}"')
MAX_CONSIDERED = 500
"""Maximum number of jobs, or of attempts, that a round checks."""
ROWS_AT_ONCE = 500
"""Maximum number of rows that one transaction deletes from one table. Other writers of SQLite wait
for the transaction."""
FAILED_PAUSE = timedelta(hours=1)


class _Walk:
    """Goes through the ended rows of a table by id, and starts over at the end of the table."""

    def __init__(self, key: Column[str], ended: ColumnElement[bool]) -> None:
        self._key = key
        self._ended = ended
        self.last = ""
        """Id after which the next rows follow."""

    def next(self, database: Database, chosen: ColumnElement[bool]) -> Sequence[str]:
        """Return the ids of the chosen rows among the next `MAX_CONSIDERED`.

        If none of them is chosen, the next call starts after them.
        """
        following = select(self._key).where(self._ended, self._key > self.last)
        these = following.order_by(self._key).limit(MAX_CONSIDERED).subquery()
        some = select(self._key).where(self._key.in_(select(these.c.id)), chosen)
        with database.read() as connection:
            last, seen = connection.execute(select(func.max(these.c.id), func.count())).one()
            found = connection.scalars(some.order_by(self._key)).all()
        if not found:
            self.last = last if seen == MAX_CONSIDERED else ""
        return found


class JobPruner:
    """Checks ended jobs in turn, and deletes old jobs that nothing needs."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._walk = _Walk(jobs.c.id, _IS_OVER)
        self._isolation = Isolation(context.clock.monotonic, pause=FAILED_PAUSE)

    def run(self) -> Generator[None, None, int]:
        """Delete the next jobs in steps, and return the number of deleted jobs.

        Each step deletes a part of one job's rows. If a run breaks off, the next run continues with
        the remaining rows of the job.
        """
        deleted, left_out = 0, self._isolation.left_out()
        for job_id in self._walk.next(self._context.database, self._may_go()):
            if job_id not in left_out:
                with self._isolation.turn(job_id, f"the deletion of job {job_id}"):
                    while (part := self._delete_part(job_id)) == "more":
                        yield
                    deleted += part == "deleted"
            self._walk.last = job_id
            yield
        return deleted

    def _may_go(self) -> ColumnElement[bool]:
        """Return the SQL condition that a job ended long ago and that nothing needs it."""
        settings, now = self._context.settings, self._context.now()
        imported = jobs.c.imported_from.is_not(None)
        old = or_(
            and_(~imported, _before(now, settings.jobs_kept_days, jobs.c.ended_at)),
            # The age of an imported job counts from the import, because its end is the end of the
            # original run.
            and_(imported, _before(now, settings.imports_kept_days, jobs.c.created_at)),
        )
        return and_(old, _IS_OVER, *_unneeded())

    def _delete_part(self, job_id: str) -> Literal["more", "deleted", "stays"]:
        """Delete a part of a job's rows, unless something now needs the job."""
        context = self._context
        with context.database.write() as connection:
            try:
                lock_job(connection, job_id)
            except NotFoundError:
                return "stays"
            query = select(jobs.c.name, jobs.c.project).where(jobs.c.id == job_id, self._may_go())
            row = connection.execute(query).one_or_none()
            if row is None:
                return "stays"
            if not _trimmed(connection, job_id):
                return "more"
            connection.execute(delete(jobs).where(jobs.c.id == job_id))
            of_job = idempotency_keys.c.job_id == job_id
            connection.execute(delete(idempotency_keys).where(of_job))
            forget(connection, job_id)
            gone, words = Subject(job_id, project=row.project), f"{row.name} was forgotten"
            event = NewEvent(JobDeleted(), RETENTION, gone, words)
            append_event(context, connection, event)
        return "deleted"


def _before(now: datetime, days: float, at: ColumnElement[datetime]) -> ColumnElement[bool]:
    """Return the SQL condition that `at` is more than `days` ago; always false if `days` is 0."""
    return at < now - timedelta(days=days) if days else false()


def _unneeded() -> Sequence[ColumnElement[bool]]:
    """Return the SQL conditions that nothing depends on a job."""
    fork, share = jobs.alias("fork").c, attempt_nodes.c
    # The id of a checkpoint starts with the id of its job. The subquery is not correlated, so it
    # runs once.
    origin = func.substr(fork.forked_from, 1, ID_LENGTH)
    parents = select(origin).where(fork.forked_from.is_not(None))
    held = exists().where(
        attempts.c.job_id == jobs.c.id,
        share.attempt_id == attempts.c.id,
        share.state != AttemptNodeState.ENDED,
    )
    return (
        ~exists().where(checkpoints.c.job_id == jobs.c.id),
        jobs.c.id.not_in(parents),
        ~exists().where(operations.c.job_id == jobs.c.id, ARE_OPEN),
        ~exists().where(holdings.c.job_id == jobs.c.id, holdings.c.spent.is_(None)),
        ~held,
        ~_IS_KEPT,
    )


def _trimmed(connection: Connection, job_id: str) -> bool:
    """Delete at most `ROWS_AT_ONCE` rows of a job in large tables; return whether all are gone."""
    mine = select(attempts.c.id).where(attempts.c.job_id == job_id)
    series = select(metric_series.c.id).where(metric_series.c.attempt_id.in_(mine))
    left = ROWS_AT_ONCE
    for table, condition in (
        (log_blocks, log_blocks.c.attempt_id.in_(mine)),
        (metric_chunks, metric_chunks.c.series_id.in_(series)),
        (metric_tails, metric_tails.c.series_id.in_(series)),
        (metric_series, metric_series.c.attempt_id.in_(mine)),
        (step_digests, step_digests.c.attempt_id.in_(mine)),
        (rank_steps, rank_steps.c.attempt_id.in_(mine)),
        (artifacts, artifacts.c.job_id == job_id),
        (events, events.c.job_id == job_id),
    ):
        left -= delete_some(connection, table, condition, most=left)
        if left <= 0:
            return False
    return True


def delete_some(
    connection: Connection, table: Table, condition: ColumnElement[bool], *, most: int
) -> int:
    """Delete at most `most` rows from a table, sorted by key; return the number of deleted rows."""
    key = list(table.primary_key.columns)
    some: Select[tuple[object, ...]] = select(*key).where(condition).order_by(*key).limit(most)
    chosen = key[0].in_(some) if len(key) == 1 else tuple_(*key).in_(some)
    return connection.execute(delete(table).where(chosen)).rowcount


class LogPruner:
    """Deletes the logs of attempts that ended long ago, even if their jobs are kept."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._walk = _Walk(attempts.c.id, attempts.c.state == AttemptState.ENDED)

    def prune(self) -> int:
        """Check the next attempts; return the number of deleted blocks."""
        days = self._context.settings.logs_kept_days
        if not days:
            return 0
        old = and_(
            _before(self._context.now(), days, attempts.c.ended_at),
            exists().where(log_blocks.c.attempt_id == attempts.c.id),
            ~exists().where(jobs.c.id == attempts.c.job_id, _IS_KEPT),
        )
        found = self._walk.next(self._context.database, old)
        if not found:
            return 0
        with self._context.database.write() as connection:
            of_these = log_blocks.c.attempt_id.in_(found)
            return delete_some(connection, log_blocks, of_these, most=ROWS_AT_ONCE)

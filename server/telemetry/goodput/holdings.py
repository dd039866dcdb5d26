"""The holdings of shares, recorded when a share ends and categorised when the job has ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, ClassVar

from sqlalchemy import Connection, Select, Table, bindparam, select, update

from server.core.context import Context
from server.core.database.held import HELD_SINCE
from server.core.database.rows import TypedRow
from server.core.database.slot_tables import HOLDS_SLOTS, holdings
from server.core.database.tables import attempt_nodes, attempts, jobs
from server.core.errors import NotFoundError
from server.core.isolation import Isolation
from server.telemetry.goodput.ledger import Ledger
from server.telemetry.goodput.queries import milliseconds, records_of
from server.telemetry.goodput.slot_time import ByDay, Held, spread
from server.telemetry.goodput.step_sums import store_step_sums
from trainyard.protocol.goodput import TimeCategory
from trainyard.protocol.states import TERMINAL_JOB_STATES, JobState

SETTLED_AFTER = timedelta(minutes=10)
"""Time after the end of a job during which its last records may still arrive."""
SETTLED_AT_ONCE = 20
"""Maximum number of jobs that one call settles. A job takes a few milliseconds, and placements wait
while a call runs.
"""
FAILED_PAUSE = timedelta(hours=1)
"""Pause after an error before the same job is tried again."""
_ENDED = sorted(state.value for state in TERMINAL_JOB_STATES)


@dataclass(frozen=True, slots=True)
class HeldShare(TypedRow):
    """The slots of a node that a share held or still holds."""

    table: ClassVar[Table] = holdings
    job_id: str
    job_name: str
    project: str
    attempt: int
    node: str
    slots: int
    since: datetime
    until: datetime
    spare: bool
    spent: dict[str, dict[str, int]] | None
    job_state: Annotated[JobState | None, jobs.c.state]
    """State of the job; None once the job is deleted."""

    @property
    def held(self) -> Held:
        """The held slots, with the start and the end of the holding in milliseconds."""
        return Held(self.node, self.slots, milliseconds(self.since), milliseconds(self.until))

    @property
    def is_settled(self) -> bool:
        """Whether the stored categories of the share are final."""
        return self.spent is not None and self.job_state in (None, *TERMINAL_JOB_STATES)

    def stored(self) -> Mapping[int, Mapping[str, int]]:
        """Return the stored slot-time by day and category."""
        return {int(day): spent for day, spent in (self.spent or {}).items()}


def read_holdings(
    connection: Connection,
    *,
    since: datetime,
    until: datetime,
    now: datetime,
    project: str | None = None,
) -> list[HeldShare]:
    """Return the holdings between two times, by default of all projects.

    Live shares count until now.
    """
    ended = (
        HeldShare.select()
        .outerjoin(jobs, jobs.c.id == holdings.c.job_id)
        .where(holdings.c.until > since, holdings.c.since < until)
    )
    if project is not None:
        ended = ended.where(holdings.c.project == project)
    found = list(HeldShare.all(connection, ended))
    job, share = jobs.c, attempt_nodes.c
    live = (
        select(job.id, job.name, job.project, attempts.c.number, share.node, share.slots)
        .add_columns(HELD_SINCE, share.spare_since.is_not(None), job.state)
        .join(attempts, attempts.c.id == share.attempt_id)
        .join(jobs, job.id == attempts.c.job_id)
        .where(HOLDS_SLOTS, until > HELD_SINCE)
    )
    if project is not None:
        live = live.where(job.project == project)
    for row in connection.execute(live):
        job_id, name, of, number, node, slots, began, spare, state = row
        end = max(now, began)
        found.append(
            HeldShare(job_id, name, of, number, node, len(slots), began, end, spare, None, state)
        )
    return found


def spent_by_day(holding: HeldShare, ledger: Ledger | None, *, start: int, end: int) -> ByDay:
    """Return the slot-time of a share by day, between two Unix times in milliseconds.

    The time of a spare share has the category `spare`. If the job has no ledger, for example after
    the job's deletion, other time has the category `other`.
    """
    if holding.spare:
        return spread((), holding.held, start=start, end=end, rest=TimeCategory.SPARE)
    intervals = () if ledger is None else ledger.intervals
    own = [interval for interval in intervals if interval.attempt == holding.attempt]
    return spread(own, holding.held, start=start, end=end)


class Settler:
    """Settles jobs: stores their categories once `SETTLED_AFTER` has passed since their end.

    After that, the slot-time of the job is read from one row per share. A resume makes the job
    unsettled, and the job is settled again after its next end.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._isolation = Isolation(context.clock.monotonic, pause=FAILED_PAUSE)

    def run(self) -> None:
        """Settle the next jobs."""
        now = self._context.now()
        without = self._isolation.left_out()
        with self._context.database.read() as connection:
            job_ids = connection.scalars(due_jobs(now, without=without)).all()
        for job_id in job_ids:
            with self._isolation.turn(job_id, f"the slot-time of job {job_id}"):
                _settle_job(self._context, job_id)


def due_jobs(now: datetime, *, without: Collection[str] = ()) -> Select[str]:
    """Return a query for the ids of the next jobs to settle; `without` has ids to leave out."""
    ended_at = (
        # A subquery, because SQLite would start a join at all ended jobs.
        select(jobs.c.ended_at)
        .where(jobs.c.id == holdings.c.job_id, jobs.c.state.in_(_ENDED))
        .scalar_subquery()
    )
    return (
        select(holdings.c.job_id)
        .distinct()
        .where(
            holdings.c.spent.is_(None),
            ended_at < now - SETTLED_AFTER,
            holdings.c.job_id.not_in(list(without)),
        )
        .order_by(holdings.c.job_id)
        .limit(SETTLED_AT_ONCE)
    )


def _settle_job(context: Context, job_id: str) -> None:
    store_step_sums(context, job_id)
    with context.database.read() as connection:
        try:
            ledger = records_of(context, connection, job_id).ledger
        except NotFoundError:  # deleted meanwhile
            return
        query = HeldShare.select().outerjoin(jobs, jobs.c.id == holdings.c.job_id)
        rows = HeldShare.all(connection, query.where(holdings.c.job_id == job_id))
    values = []
    for row in rows:
        held = row.held
        by_day = spent_by_day(row, ledger, start=held.since, end=held.until)
        stored = {
            str(day): {str(category): time for category, time in spent.items()}
            for day, spent in by_day.items()
        }
        key = {"number": row.attempt, "on": row.node, "began": row.since}
        values.append({**key, "categories": stored})
    statement = (
        update(holdings)
        .where(
            holdings.c.job_id == job_id,
            holdings.c.attempt == bindparam("number"),
            holdings.c.node == bindparam("on"),
            holdings.c.since == bindparam("began"),
        )
        .values(spent=bindparam("categories"))
    )
    with context.database.write() as connection:
        connection.execute(statement, values)

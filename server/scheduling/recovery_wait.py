"""Jobs that wait for the search for unreported commits of a lost attempt (lifecycle, 25)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy import Select, Table, bindparam, or_, update

from server.context import Context
from server.database.rows import TypedRow
from server.database.tables import jobs, operations
from server.liveness import hearing
from server.nodes.capacity import Offer, read_offers
from server.scheduling.queue import WaitingJob, notify_waiting
from trainyard.protocol.operations import OperationKind, OperationTask
from trainyard.protocol.states import OPEN_OPERATION_STATES, JobState


@dataclass(frozen=True, slots=True)
class Search(TypedRow):
    """An open search for the commits of a lost attempt."""

    table: ClassVar[Table] = operations
    id: str
    job_id: str
    task: OperationTask
    storage: str | None
    awaited_since: datetime | None


class RecoveryWait:
    """Keeps jobs out of the queue while such a search can end in time."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def held_back(self) -> frozenset[str]:
        """Return the ids of due jobs whose search is open.

        The wait begins when a node that sees the storage is online, and ends with the search or
        after `recovery_seconds` in which an API server was up. Without such a node no job waits.
        """
        now = self._context.now()
        with self._context.database.read() as connection:
            searches = Search.all(connection, _open_searches(now))
            if not searches:
                return frozenset()
            offers, heard = read_offers(connection), hearing(connection, now)
        able = [row for row in searches if _is_seen(row, offers)]
        starting = [row for row in able if row.awaited_since is None]
        if starting:
            self._begin(starting, now)
        limit = now - timedelta(seconds=self._context.settings.recovery_seconds)
        # The search reports to an API server: its time counts only while one is up.
        since = heard.up_since if heard is not None else now
        began = {row.job_id: max(row.awaited_since or now, since) for row in able}
        return frozenset(job_id for job_id, at in began.items() if at > limit)

    def _begin(self, searches: Sequence[Search], now: datetime) -> None:
        """Store the start of the wait and its reason."""
        ordered = sorted(searches, key=lambda row: str(row.job_id))
        rows = [
            {"job": row.job_id, "because": _reason(row), "search": row.id, "since": now}
            for row in ordered
        ]
        waits = (jobs.c.id == bindparam("job")) & (jobs.c.state == JobState.QUEUED)
        with self._context.database.write() as connection:
            # It may have entered its group while no node saw the storage.
            held = update(jobs).where(waits).values(reason=bindparam("because"), demand=None)
            connection.execute(held, rows)
            begun = update(operations).where(operations.c.id == bindparam("search"))
            connection.execute(begun.values(awaited_since=bindparam("since")), rows)
            still = WaitingJob.select().where(
                jobs.c.id.in_([row.job_id for row in ordered]), jobs.c.state == JobState.QUEUED
            )
            waiting = WaitingJob.all(connection, still.order_by(jobs.c.id))
            notify_waiting(self._context, connection, waiting)


def _reason(search: Search) -> str:
    assert search.task.recover is not None, "a search has its task"
    return f"waits until the checkpoints of attempt {search.task.recover.attempt} are found"


def _open_searches(now: datetime) -> Select[Any]:
    due = or_(jobs.c.not_before.is_(None), jobs.c.not_before <= now)
    return (
        Search.select()
        .join(jobs, jobs.c.id == operations.c.job_id)
        .where(
            operations.c.kind == OperationKind.RECOVER,
            operations.c.state.in_(sorted(OPEN_OPERATION_STATES)),
            jobs.c.state == JobState.QUEUED,
            due,
        )
    )


def _is_seen(row: Search, offers: Sequence[Offer]) -> bool:
    return any(offer.roots.get(row.task.root) == row.storage for offer in offers)

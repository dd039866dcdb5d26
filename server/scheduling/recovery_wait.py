"""Jobs that wait for the search for unreported commits of a lost attempt (lifecycle, 25)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from sqlalchemy import Table, bindparam, or_, select, update

from server.context import Context
from server.database.column_types import StoredRecord
from server.database.rows import TypedRow
from server.database.tables import jobs, operations
from server.errors import UnreadableError
from server.liveness import hearing
from server.nodes.capacity import read_offers
from server.operations.queries import ARE_OPEN
from server.queue.groups import take_out
from trainyard.protocol.operations import OperationKind, OperationTask
from trainyard.protocol.states import JobState


@dataclass(frozen=True, slots=True)
class Search(TypedRow):
    """An open search for the commits of a lost attempt."""

    table: ClassVar[Table] = operations
    id: str
    job_id: str
    task: StoredRecord[OperationTask]
    storage: str | None
    awaited_since: datetime | None


def held_back(context: Context) -> frozenset[str]:
    """Return the ids of due jobs whose search for commits can still end in time.

    The wait begins when a node that sees the storage is online, and ends with the search or after
    `recovery_seconds` in which an API server was up. Without such a node no job waits, nor for a
    search whose task cannot be read, which no node can begin.
    """
    now = context.now()
    due = or_(jobs.c.not_before.is_(None), jobs.c.not_before <= now)
    of_a_search = (operations.c.kind == OperationKind.RECOVER) & ARE_OPEN
    with context.database.read() as connection:
        searches = Search.all(connection, Search.select().where(of_a_search))
        if not searches:
            return frozenset()
        # Not by a join: a database may begin it with all jobs that wait.
        of_searches = jobs.c.id.in_({search.job_id for search in searches})
        waiting = select(jobs.c.id, jobs.c.queued_at).where(
            of_searches, jobs.c.state == JobState.QUEUED, due
        )
        queued_at = dict(connection.execute(waiting).all())
        searches = [search for search in searches if search.job_id in queued_at]
        if not searches:
            return frozenset()
        offers, heard = read_offers(connection), hearing(connection, now)
    able: list[Search] = []
    starting: list[tuple[Search, str]] = []
    for search in searches:
        task = _task(search)
        if task is None or all(offer.roots.get(task.root) != search.storage for offer in offers):
            continue
        able.append(search)
        if search.awaited_since is None:
            assert task.recover is not None, "a search has its task"
            attempt = task.recover.attempt
            starting.append((search, f"waits until the checkpoints of attempt {attempt} are found"))
    if starting:
        with context.database.write() as connection:
            # It may have entered its group while no node saw the storage.
            take_out(
                context, connection, [(s.job_id, queued_at[s.job_id], why) for s, why in starting]
            )
            begun = update(operations).where(operations.c.id == bindparam("search"))
            connection.execute(
                begun.values(awaited_since=now),
                [{"search": key} for key in sorted(search.id for search, _ in starting)],
            )
    limit = now - timedelta(seconds=context.settings.recovery_seconds)
    # The search reports to an API server: its time counts only while one is up.
    since = heard.up_since if heard is not None else now
    return frozenset(s.job_id for s in able if max(s.awaited_since or now, since) > limit)


def _task(search: Search) -> OperationTask | None:
    try:
        return search.task.read(f"task of operation {search.id}")
    except UnreadableError:
        return None  # the round of operations logs it, and stores it as the reason

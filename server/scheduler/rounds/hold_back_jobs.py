"""Holds back jobs during a search for commits (docs/lifecycle-failures.md, 25) or a build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from sqlalchemy import Table, and_, bindparam, or_, update

from server.cluster.nodes.capacity import read_offers
from server.core.context import Context
from server.core.database.column_types import StoredRecord
from server.core.database.rows import TypedRow
from server.core.database.tables import jobs, operations
from server.core.errors import UnreadableError
from server.core.liveness import server_uptime
from server.jobs.operations.queries import ARE_OPEN
from server.jobs.queue.groups import Waiting, take_out
from trainyard.protocol.operations import OperationKind, OperationTask
from trainyard.protocol.states import JobState, OperationState


@dataclass(frozen=True, slots=True)
class AwaitedOperation(TypedRow):
    """An open search for the commits of a lost attempt, or an open build of an environment."""

    table: ClassVar[Table] = operations
    id: str
    kind: OperationKind
    state: OperationState
    job_id: str
    task: StoredRecord[OperationTask]
    storage: str | None
    awaited_since: datetime | None
    waiting: str | None


@dataclass(frozen=True, slots=True)
class _WaitingJob(TypedRow):
    table: ClassVar[Table] = jobs
    id: str
    queued_at: datetime | None
    reason: str | None
    demand: str | None


def held_back(context: Context) -> frozenset[str]:
    """Return the ids of jobs, not in a pause, that wait for their search or build; store why."""
    now = context.now()
    due = or_(jobs.c.not_before.is_(None), jobs.c.not_before <= now)
    kinds = operations.c.kind.in_((OperationKind.RECOVER, OperationKind.BUILD))
    awaited = and_(kinds, ARE_OPEN, operations.c.failing.is_(None))  # jobs do not wait for retries
    with context.database.read() as connection:
        found = AwaitedOperation.all(connection, AwaitedOperation.select().where(awaited))
        if not found:
            return frozenset()
        # The query has no join, because a database might start a join with all waiting jobs.
        named = jobs.c.id.in_({operation.job_id for operation in found})
        waiting = _WaitingJob.select().where(named, jobs.c.state == JobState.QUEUED, due)
        by_id = {job.id: job for job in _WaitingJob.all(connection, waiting)}
    found = [operation for operation in found if operation.job_id in by_id]
    builds = [each for each in found if each.kind == OperationKind.BUILD]
    searches = [each for each in found if each.kind == OperationKind.RECOVER]
    return _await_builds(context, builds, by_id) | _await_searches(context, searches, by_id)


def _await_builds(
    context: Context, builds: Sequence[AwaitedOperation], by_id: Mapping[str, _WaitingJob]
) -> frozenset[str]:
    """Return the ids of jobs with open builds; such jobs have to wait for their environment."""
    changed = []
    for build in builds:
        job, task = by_id[build.job_id], _task(build)
        if task is None or task.build is None:
            continue  # no node can run it; a new attempt requests another build
        reason = f"waits until environment {task.build.digest[:12]} is built"
        if build.state == OperationState.QUEUED and build.waiting is not None:
            reason += f" ({build.waiting})"
        if job.demand is not None or job.reason != reason:
            changed.append((job.id, job.queued_at, reason))
    if changed:
        with context.database.write() as connection:
            take_out(context, connection, changed)
    return frozenset(build.job_id for build in builds)


def _await_searches(
    context: Context, searches: Sequence[AwaitedOperation], by_id: Mapping[str, _WaitingJob]
) -> frozenset[str]:
    """Return the ids of jobs that still wait for a search for commits.

    The wait starts when a node with access to the search's storage is online. The wait ends when
    the search ends, or when an API server has been up for `recovery_seconds` of the wait. A job
    does not wait for a search that no node can start.
    """
    if not searches:
        return frozenset()
    now = context.now()
    with context.database.read() as connection:
        offers, uptime = read_offers(connection), server_uptime(connection, now)
    able: list[AwaitedOperation] = []
    starting: dict[str, Waiting] = {}  # by id of the search
    for search in searches:
        task = _task(search)
        if task is None or all(offer.roots.get(task.root) != search.storage for offer in offers):
            continue
        able.append(search)
        if search.awaited_since is None:
            assert task.recover is not None, "a search has its task"
            why = f"waits until the checkpoints of attempt {task.recover.attempt} are found"
            starting[search.id] = (search.job_id, by_id[search.job_id].queued_at, why)
    if starting:
        with context.database.write() as connection:
            # A job may have entered its group while no node had access to the storage.
            take_out(context, connection, starting.values())
            begun = update(operations).where(operations.c.id == bindparam("search"))
            keys = [{"search": key} for key in sorted(starting)]
            connection.execute(begun.values(awaited_since=now), keys)
    limit = now - timedelta(seconds=context.settings.recovery_seconds)
    # The search reports to an API server, so its time counts only while an API server is up.
    since = uptime.up_since if uptime is not None else now
    return frozenset(s.job_id for s in able if max(s.awaited_since or now, since) > limit)


def _task(search: AwaitedOperation) -> OperationTask | None:
    try:
        return search.task.read(f"task of operation {search.id}")
    except UnreadableError:
        return None  # the round of operations logs and stores the error

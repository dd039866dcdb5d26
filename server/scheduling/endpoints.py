"""`/queue`: the jobs that wait, in their order, and when they are expected to start."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Self

from fastapi import APIRouter, Depends, Request, Response
from sqlalchemy import ColumnElement, Connection, Table, and_, func, or_, select

from server.auth.dependencies import person
from server.context import Context
from server.database.rows import TypedRow
from server.database.tables import attempt_nodes, attempts, demands, jobs
from server.http.dependencies import ServerContext
from server.http.paging import PageRequest, page_by
from server.http.path_params import JobId
from server.http.request_body import JsonBody
from server.http.responses import reply
from server.jobs.checks import check_hardware, check_spec, check_world_size
from server.jobs.queries import shown_reason
from server.lifecycle import check_job
from server.nodes.capacity import Offer, read_offers
from server.scheduling.forecast import (
    FORECAST_JOBS,
    TOO_FAR_BACK,
    Forecast,
    Holding,
    forecast,
)
from server.scheduling.placement import QueuedJob
from server.scheduling.queue import ORDER, demand_of, demand_of_shape
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.jobs import QueueEntry, QueuePlace, WhatIf
from trainyard.protocol.states import AttemptNodeState, JobState
from trainyard.spec.job import JobSpec
from trainyard.spec.rules import check_new_job
from trainyard.spec.sections.resources import LOWEST_PRIORITY

router = APIRouter(tags=["queue"], dependencies=[person])

Spec = Annotated[JobSpec, Depends(JsonBody(JobSpec))]

KEY = r"^[0-9]{3}[0-9]{16}[0-7][0-9a-hjkmnp-tv-z]{25}$"
"""Priority above the lowest, microseconds since 1970 at which it was queued, and id."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOT_CONSIDERED = "the scheduler does not consider it for slots yet"
NOT_YET = f"it was not among the first {FORECAST_JOBS} jobs when the starts were last forecast"
FORECAST_KEPT = timedelta(seconds=5)
"""Age up to which one forecast of the queue answers every request."""
FORECAST_SECONDS = 0.5
"""Time after which a forecast begins no further round; a round of 50 demands on 1,000 nodes takes
0.2 s."""
_QUEUED = jobs.c.state == JobState.QUEUED


class Forecaster:
    """The forecasts of one server process, one at a time; that of the queue serves some seconds.

    Requests share the threads that heartbeats need, and a forecast of a large cluster is costly. So
    those that come together wait for one result, and no transaction is open meanwhile.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._kept: tuple[datetime, Forecast] | None = None

    def of_queue(self) -> Forecast:
        """Return what was expected of the first jobs at most `FORECAST_KEPT` ago."""
        with self._lock:
            now = self._context.now()
            if self._kept is not None and timedelta() <= now - self._kept[0] < FORECAST_KEPT:
                return self._kept[1]
            with self._context.database.read() as connection:
                inputs = _Inputs.read(connection, now)
            found = self._forecast(inputs, [head.job for head in inputs.heads], now)
            self._kept = self._context.now(), found
            return found

    def with_candidate(self, candidate: QueuedJob, priority: int) -> Forecast:
        """Return what is expected now of the first jobs, and of a candidate behind its equals."""
        with self._lock:
            now = self._context.now()
            with self._context.database.read() as connection:
                inputs = _Inputs.read(connection, now)
            queue = [head.job for head in inputs.heads]
            queue.insert(sum(head.priority >= priority for head in inputs.heads), candidate)
            return self._forecast(inputs, queue, now)

    def _forecast(self, inputs: _Inputs, queue: Sequence[QueuedJob], now: datetime) -> Forecast:
        deadline = time.monotonic() + FORECAST_SECONDS
        return forecast(
            queue,
            inputs.offers,
            inputs.holdings,
            now=now,
            has_time=lambda: time.monotonic() < deadline,
        )


async def _forecaster_of(request: Request) -> Forecaster:
    forecaster = request.app.state.forecaster
    assert isinstance(forecaster, Forecaster)
    return forecaster


Forecasts = Annotated[Forecaster, Depends(_forecaster_of)]


@router.get("/queue", response_model=Page[QueueEntry], summary="The jobs that wait, in order")
def list_(
    context: ServerContext,
    forecasts: Forecasts,
    page: Annotated[PageRequest[str], Depends(page_by("queue", str, KEY))],
) -> Response:
    """List the queue: position, priority, reason, and expected start of the first jobs.

    A page begins after the last job of the page before, also when that one has started since.
    """
    with context.database.read() as connection:
        after = None if page.after is None else _Turn.parse(page.after)
        ahead, grouped = (0, 0) if after is None else _up_to(connection, after)
        rows = _rows(connection, after, limit=page.limit)
    expected = forecasts.of_queue() if grouped < FORECAST_JOBS else None
    entries = []
    for position, row in enumerate(rows, start=ahead + 1):
        grouped += row.demand is not None
        entries.append(_entry(row, position, expected if grouped <= FORECAST_JOBS else None))
    turns = {row.id: row.turn.key for row in rows}
    shown, next_page_token = page.cut(entries, lambda entry: turns[entry.job_id])
    return reply(Page[QueueEntry](items=tuple(shown), next_page_token=next_page_token))


@router.get(
    "/jobs/{job_id}/queue", response_model=QueuePlace, summary="The place of a job in the queue"
)
def place_of(context: ServerContext, forecasts: Forecasts, job_id: JobId) -> Response:
    """Return position, reason and expected start; without an entry where the job does not wait."""
    with context.database.read() as connection:
        check_job(connection, job_id)
        row = _Row.one_or_none(connection, _Row.select().where(jobs.c.id == job_id, _QUEUED))
        if row is None:
            return reply(QueuePlace(entry=None))
        position, grouped = _up_to(connection, row.turn)
    near = row.demand is not None and grouped <= FORECAST_JOBS
    expected = forecasts.of_queue() if near else None
    return reply(QueuePlace(entry=_entry(row, position, expected)))


@router.post("/queue/what-if", response_model=WhatIf, summary="When would this job start?")
def what_if(context: ServerContext, forecasts: Forecasts, spec: Spec) -> Response:
    """Check a spec as a submission does, and return its place in the queue; nothing is stored."""
    check_spec(context, spec, rules=check_new_job)
    check_world_size(context, spec.resources.world_size, pointer="/resources/world_size")
    priority = spec.resources.priority
    candidate = QueuedJob("", spec.name, demand_of(spec, Overrides(), spec.layout(), bound=None))
    with context.database.read() as connection:
        check_hardware(connection, spec)
        ahead, grouped = _counts(connection, jobs.c.priority >= priority)
    if grouped >= FORECAST_JOBS:
        return reply(WhatIf(position=ahead + 1, unknown_because=TOO_FAR_BACK))
    expected = forecasts.with_candidate(candidate, priority)
    start = expected.starts.get(candidate.id)
    return reply(
        WhatIf(
            starts_now=candidate.id not in expected.waiting,
            position=ahead + 1,
            reason=expected.waiting.get(candidate.id),
            expected_start_at=start,
            unknown_because=expected.unknown.get(candidate.id),
        )
    )


@dataclass(frozen=True)
class _Turn:
    """What decides the place of a job in the queue."""

    priority: int
    queued_at: datetime
    id: str

    @classmethod
    def parse(cls, key: str) -> Self:
        """Return the turn that a page token holds."""
        queued_at = EPOCH + timedelta(microseconds=int(key[3:19]))
        return cls(int(key[:3]) + LOWEST_PRIORITY, queued_at, key[19:])

    @property
    def key(self) -> str:
        """The turn as a page token holds it."""
        since = (self.queued_at - EPOCH) // timedelta(microseconds=1)
        return f"{self.priority - LOWEST_PRIORITY:03}{since:016}{self.id}"

    @property
    def behind(self) -> ColumnElement[bool]:
        """The condition of the jobs behind it."""
        same = jobs.c.queued_at == self.queued_at
        later = or_(jobs.c.queued_at > self.queued_at, and_(same, jobs.c.id > self.id))
        return or_(jobs.c.priority < self.priority, and_(jobs.c.priority == self.priority, later))


@dataclass(frozen=True, slots=True)
class _Row(TypedRow):
    """A job that waits."""

    table: ClassVar[Table] = jobs
    id: str
    name: str
    priority: int
    world_size: int
    layout: str
    queued_at: datetime | None
    demand: str | None
    reason: Annotated[str | None, shown_reason]

    @property
    def turn(self) -> _Turn:
        """Its place."""
        assert self.queued_at is not None, "a queued job has the time at which it was queued"
        return _Turn(self.priority, self.queued_at, self.id)


@dataclass(frozen=True, slots=True)
class _Head(TypedRow):
    """A job of a group."""

    table: ClassVar[Table] = jobs
    id: str
    name: str
    priority: int
    shape: Annotated[Any, demands.c.shape]

    @property
    def job(self) -> QueuedJob:
        """The job, as it is placed."""
        return QueuedJob(self.id, self.name, demand_of_shape(self.shape))


@dataclass(frozen=True)
class _Inputs:
    """What a forecast reads."""

    heads: Sequence[_Head]
    """The first jobs of groups, in the order of the queue."""
    offers: Sequence[Offer]
    holdings: Sequence[Holding]

    @classmethod
    def read(cls, connection: Connection, now: datetime) -> Self:
        """Return them as they are now."""
        grouped = _QUEUED & jobs.c.demand.is_not(None)
        ids = select(jobs.c.id).where(grouped).order_by(*ORDER).limit(FORECAST_JOBS)
        heads = _Head.all(
            connection,
            _Head.select()
            .join(demands, demands.c.key == jobs.c.demand)
            .where(jobs.c.id.in_(ids))
            .order_by(*ORDER),
        )
        return cls(heads, read_offers(connection), _holdings(connection, now))


def _rows(connection: Connection, after: _Turn | None, *, limit: int) -> Sequence[_Row]:
    """Return jobs in the order of the queue; the index alone is sorted."""
    waits = _QUEUED if after is None else _QUEUED & after.behind
    ids = select(jobs.c.id).where(waits).order_by(*ORDER).limit(limit)
    return _Row.all(connection, _Row.select().where(jobs.c.id.in_(ids)).order_by(*ORDER))


def _up_to(connection: Connection, turn: _Turn) -> tuple[int, int]:
    """Return how many jobs wait up to a turn, its own included while it waits, as `_counts`."""
    return _counts(connection, ~turn.behind)


def _counts(connection: Connection, condition: ColumnElement[bool]) -> tuple[int, int]:
    """Return how many jobs wait, and how many of these in groups; only those are forecast."""
    query = select(func.count(), func.count(jobs.c.demand)).where(_QUEUED, condition)
    waiting, grouped = connection.execute(query).one()
    return waiting, grouped


def _holdings(connection: Connection, now: datetime) -> list[Holding]:
    """Return what attempts hold, each with its expected end: the steps left at its own pace."""
    rows = connection.execute(
        select(attempt_nodes.c.node, attempt_nodes.c.slots, jobs.c.state, jobs.c.progress)
        .join(attempts, attempts.c.id == attempt_nodes.c.attempt_id)
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .where(attempt_nodes.c.state != AttemptNodeState.ENDED)
    )
    found = []
    for node, slots, state, progress in rows:
        left = progress.seconds_left if state == JobState.RUNNING else None
        ends_at = None if left is None else now + timedelta(seconds=left)
        found.append(Holding(node, tuple(slots), ends_at))
    return found


def _entry(row: _Row, position: int, expected: Forecast | None) -> QueueEntry:
    """Return the view of a job; a forecast does not reach those far behind."""
    start, why = None, TOO_FAR_BACK
    if row.demand is None:
        why = NOT_CONSIDERED
    elif expected is not None:
        start = expected.starts.get(row.id)
        why = expected.unknown.get(row.id, NOT_YET)
    return QueueEntry(
        job_id=row.id,
        name=row.name,
        position=position,
        priority=row.priority,
        world_size=row.world_size,
        layout=row.layout,
        queued_at=row.queued_at,
        reason=row.reason,
        expected_start_at=start,
        unknown_because=None if start is not None else why,
    )

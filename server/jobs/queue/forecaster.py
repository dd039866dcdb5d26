"""The forecast of the queue, which a server process caches for a few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Self

from sqlalchemy import Connection

from server.cluster.nodes.capacity import Capacity, read_capacity
from server.cluster.placement.demand import QueuedJob
from server.cluster.placement.forecast import FORECAST_JOBS, Forecast, forecast
from server.cluster.placement.quotas import Quota
from server.cluster.projects.quotas import read_quotas
from server.core.context import Context
from server.core.database.scheduler_tables import demands
from server.core.database.tables import jobs
from server.jobs.queue.order import TAG, QueueKey, read_order
from server.jobs.queue.scheduling_queue import GroupedJob

FORECAST_KEPT = timedelta(seconds=5)
"""Time for which a forecast of the queue is cached and returned to every request."""
FORECAST_SECONDS = 0.5
"""Time, in seconds, after which a forecast starts no further round. A round with 50 demands on
1,000 nodes takes 0.2 s."""


class Forecaster:
    """Forecasts of one server process, computed one at a time; the queue's forecast is cached.

    Requests share their threads with heartbeats, and a forecast of a large cluster is costly. So
    concurrent requests wait for one result, and no transaction is open during the computation.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._kept: tuple[datetime, Forecast] | None = None

    def of_queue(self) -> Forecast:
        """Return the forecast of the head of the queue, at most `FORECAST_KEPT` old."""
        with self._lock:
            now = self._context.now()
            if self._kept is not None and timedelta() <= now - self._kept[0] < FORECAST_KEPT:
                return self._kept[1]
            with self._context.database.read() as connection:
                inputs = _Inputs.read(connection, now)
            found = self._forecast(inputs, [head.queued for head in inputs.heads], now)
            self._kept = self._context.now(), found
            return found

    def with_candidate(self, candidate: QueuedJob, key: QueueKey) -> Forecast:
        """Forecast the head of the queue now, with a candidate job at its position."""
        with self._lock:
            now = self._context.now()
            with self._context.database.read() as connection:
                inputs = _Inputs.read(connection, now, candidate=candidate.project)
            queue = [head.queued for head in inputs.heads]
            queue.insert(sum(head.key.rank <= key.rank for head in inputs.heads), candidate)
            return self._forecast(inputs, queue, now)

    def _forecast(self, inputs: _Inputs, queue: Sequence[QueuedJob], now: datetime) -> Forecast:
        deadline = time.monotonic() + FORECAST_SECONDS
        return forecast(
            queue,
            inputs.capacity.offers,
            inputs.capacity.holdings,
            now=now,
            quotas=inputs.quotas,
            on_estimates=self._context.settings.preemption,
            has_time=lambda: time.monotonic() < deadline,
        )


@dataclass(frozen=True, slots=True)
class _Head(GroupedJob):
    """A grouped job at the head of the queue."""

    tag: Annotated[float, TAG]

    @property
    def key(self) -> QueueKey:
        """Sort key of the job in the queue."""
        assert self.queued_at is not None, "a queued job has the time at which it was queued"
        return QueueKey(self.priority, self.tag, self.queued_at, self.id)


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a forecast."""

    heads: Sequence[_Head]
    """The first grouped jobs, in the order of the queue."""
    capacity: Capacity
    quotas: Mapping[str, Quota]

    @classmethod
    def read(cls, connection: Connection, now: datetime, *, candidate: str | None = None) -> Self:
        """Read the current inputs; `candidate` is the project of a candidate job."""
        order = read_order(connection, candidate=candidate)
        first = order.first(FORECAST_JOBS, order.line.c.demand.is_not(None))
        heads = _Head.all(
            connection,
            _Head.select()
            .join(first.line, first.line.c.id == jobs.c.id)
            .join(demands, demands.c.key == jobs.c.demand)
            .order_by(*first.by),
        )
        return cls(heads, read_capacity(connection, now), read_quotas(connection, now))

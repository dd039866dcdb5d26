"""Views for every endpoint: problems, pages, and readiness of the server."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, Literal, TypeVar

from trainyard.base.model_base import RecordModel
from trainyard.base.problems import Problem

Item = TypeVar("Item")


class ProblemDetails(RecordModel):
    """RFC 9457 problem, sent as `application/problem+json`."""

    type: str = "about:blank"
    """Kind of problem, as a relative reference such as `/problems/invalid-spec`."""
    title: str
    """The kind in words."""
    status: int
    """HTTP status."""
    detail: str
    """The error, and the legal values."""
    errors: tuple[Problem, ...] = ()
    """Each error, by JSON pointer into the request body or `query/<name>`."""
    request_id: str
    """Id of the request in the server's log."""


class Page(RecordModel, Generic[Item]):
    """One page of a list."""

    items: tuple[Item, ...]
    """The rows, in the order of the list."""
    next_page_token: str | None = None
    """Token of the next page; absent on the last page."""


class TaskView(RecordModel):
    """A periodic task of the scheduler."""

    name: str
    every_seconds: float
    """Time from the start of a run to the start of the next run; 0 for a run in each round."""
    budget_seconds: float
    """Time in a round after which a run in steps pauses."""
    stored_at: datetime | None
    """Time of the figures below; null before the first run."""
    runs: int
    """Runs since this scheduler became the leader."""
    failures: int
    """Failed runs among them."""
    seconds: float
    """Working time of the last run."""
    lag_seconds: float
    """Delay of the last run's start after it was due."""


class Readiness(RecordModel):
    """The server answers, and its database has the newest schema."""

    status: Literal["ready"]
    tasks: tuple[TaskView, ...]
    """Periodic tasks, in the order of a round."""

"""Views that all endpoints share: problems, pages, and readiness of the server."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, Literal, TypeVar

from trainyard.base.model_base import RecordModel
from trainyard.base.problems import Problem

Item = TypeVar("Item")


class ProblemDetails(RecordModel):
    """Error response: a problem by RFC 9457, sent as `application/problem+json`."""

    type: str = "about:blank"
    """Kind of problem, as a relative reference such as `/problems/invalid-spec`."""
    title: str
    """Kind of problem, as text."""
    status: int
    """HTTP status."""
    detail: str
    """Description of the error, with the legal values."""
    errors: tuple[Problem, ...] = ()
    """Individual errors, each with its place: a JSON pointer into the request body, or
    `query/<name>`."""
    request_id: str
    """Id of the request in the server's log."""


class Page(RecordModel, Generic[Item]):
    """One page of a list."""

    items: tuple[Item, ...]
    """Items of this page, in the order of the list."""
    next_page_token: str | None = None
    """Token of the next page; absent on the last page."""


class TaskView(RecordModel):
    """A periodic task of the scheduler."""

    name: str
    every_seconds: float
    """Time between the starts of two runs; 0 if the task runs in each round."""
    budget_seconds: float
    """Maximum time per round of a task that works in steps; the task then pauses."""
    stored_at: datetime | None
    """Time at which the values below were stored; null before the first run."""
    runs: int
    """Number of runs since this scheduler became the leader."""
    failures: int
    """Number of failed runs since this scheduler became the leader."""
    seconds: float
    """Working time of the last run, summed over its rounds."""
    lag_seconds: float
    """Delay of the last run: time from its due time to its start."""


class Readiness(RecordModel):
    """The server is ready: it responds, and its database has the newest schema."""

    status: Literal["ready"]
    tasks: tuple[TaskView, ...]
    """Periodic tasks, in the order of a round."""

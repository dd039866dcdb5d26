"""Views that every endpoint uses, problems and pages; whether the server is ready."""

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
    """Id under which the server logged the request."""


class Page(RecordModel, Generic[Item]):
    """One page of a list."""

    items: tuple[Item, ...]
    """The rows, in the order of the list."""
    next_page_token: str | None = None
    """Token of the next page; absent on the last one."""


class TaskView(RecordModel):
    """A periodic task of the scheduler."""

    name: str
    every_seconds: float
    """Time from the begin of a run to the begin of the next one; 0 for each round."""
    budget_seconds: float
    """Time of a round after which a run in steps pauses."""
    stored_at: datetime | None
    """Time of the figures below; null before the first ones."""
    runs: int
    """Runs since this scheduler leads."""
    failures: int
    """Runs that failed, of these."""
    seconds: float
    """Work of the last run."""
    lag_seconds: float
    """By how much the last run began after it was due."""


class Readiness(RecordModel):
    """The server answers, and its database has the newest schema."""

    status: Literal["ready"]
    tasks: tuple[TaskView, ...]
    """In the order of a round."""

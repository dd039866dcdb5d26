"""Views that every endpoint uses: problems and pages."""

from __future__ import annotations

from typing import Generic, TypeVar

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

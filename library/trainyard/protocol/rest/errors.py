"""Errors of a call to the server, and their mapping from responses.

TrainyardError
├── ConnectionFailedError      the server cannot be reached, or does not respond in time
└── ApiError                   an error response; `problem` is its RFC 9457 document
    ├── UnauthenticatedError   401  the token is missing, unknown, expired or revoked
    ├── ForbiddenError         403  the token does not permit the call
    ├── NotFoundError          404  the id is unknown
    ├── ConflictError          409  the current state does not permit the call
    ├── InvalidRequestError    413, 422  the request is invalid; `problem.errors` has pointers
    └── ServerError            5xx  the server failed, or is temporarily unavailable
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pydantic import ValidationError

from trainyard.protocol.rest.common import ProblemDetails


class TrainyardError(Exception):
    """Base class of all errors of a call to the server."""


class ConnectionFailedError(TrainyardError):
    """The server could not be reached, or did not respond in time."""


class ApiError(TrainyardError):
    """The server returned an error response."""

    def __init__(self, problem: ProblemDetails) -> None:
        super().__init__(f"{problem.title}: {problem.detail}")
        self.problem = problem

    @property
    def status(self) -> int:
        """HTTP status of the response."""
        return self.problem.status


class UnauthenticatedError(ApiError):
    """The token is missing, unknown, expired or revoked."""


class ForbiddenError(ApiError):
    """The token does not permit the call."""


class NotFoundError(ApiError):
    """The id in the request is unknown."""


class ConflictError(ApiError):
    """The current state does not permit the call."""


class InvalidRequestError(ApiError):
    """The request is invalid."""


class ServerError(ApiError):
    """The server failed, or is temporarily unavailable."""


BY_STATUS: dict[int, type[ApiError]] = {
    401: UnauthenticatedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    413: InvalidRequestError,
    422: InvalidRequestError,
}


class Response(Protocol):
    """Fields of a response that this module reads; `httpx.Response` has these fields."""

    @property
    def status_code(self) -> int:
        """HTTP status."""

    @property
    def reason_phrase(self) -> str:
        """Reason phrase of the status; may be empty."""

    @property
    def content(self) -> bytes:
        """Body of the response, which must have been read."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers, by case-insensitive name."""

    @property
    def url(self) -> object:
        """URL of the request."""


def error_of(response: Response) -> ApiError:
    """Return the error for an unsuccessful response, whose body the caller has already read.

    If a proxy or another service responds instead of the server, only the status is known.
    """
    status = response.status_code
    try:
        problem = ProblemDetails.model_validate_json(response.content, extra="ignore")
        problem = problem.model_copy(update={"status": status})  # the real status counts
    except ValidationError:
        problem = ProblemDetails(
            title=response.reason_phrase or f"Status {status}",
            status=status,
            detail=f"{response.url} answered without a problem document",
            request_id=response.headers.get("x-request-id", ""),
        )
    default = ServerError if status >= 500 else ApiError
    return BY_STATUS.get(status, default)(problem)

"""What the SDK raises.

TrainyardError
├── NotConfiguredError         no address of a server is known
├── ConnectionFailedError      the server could not be reached, or did not answer in time
├── UnknownReferenceError      nothing, or more than one thing, goes by this name
└── ApiError                   the server refused; `problem` is its RFC 9457 document
    ├── UnauthenticatedError   401  no token, or one that is unknown, expired or revoked
    ├── ForbiddenError         403  the token may not do this
    ├── NotFoundError          404  nothing has this id
    ├── ConflictError          409  the present state forbids it
    ├── InvalidRequestError    413, 422  something is wrong in it; `problem.errors` says where
    └── ServerError            5xx  the server failed, or is not there for the moment
"""

from __future__ import annotations

from http import HTTPStatus

import httpx
from pydantic import ValidationError

from specs.api.common import ProblemDetails


class TrainyardError(Exception):
    """Whatever the SDK raises by itself."""


class NotConfiguredError(TrainyardError):
    """No address of a server is known."""


class ConnectionFailedError(TrainyardError):
    """The server could not be reached, or did not answer in time."""


class UnknownReferenceError(TrainyardError):
    """Nothing, or more than one thing, goes by this name."""


class ApiError(TrainyardError):
    """The server refused."""

    def __init__(self, problem: ProblemDetails) -> None:
        super().__init__(f"{problem.title}: {problem.detail}")
        self.problem = problem


class UnauthenticatedError(ApiError):
    """No token, or one that is unknown, expired or revoked."""


class ForbiddenError(ApiError):
    """The token may not do this."""


class NotFoundError(ApiError):
    """Nothing has this id."""


class ConflictError(ApiError):
    """The present state forbids it."""


class InvalidRequestError(ApiError):
    """Something in the request is wrong."""


class ServerError(ApiError):
    """The server failed, or is not there for the moment."""


BY_STATUS: dict[int, type[ApiError]] = {
    401: UnauthenticatedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    413: InvalidRequestError,
    422: InvalidRequestError,
}


def error_of(response: httpx.Response) -> ApiError:
    """Return the error for a response that is none of success; its body must have been read.

    What answers may be no Trainyard at all (a proxy, another service): then the problem says what
    came.
    """
    try:
        problem = ProblemDetails.model_validate_json(response.content, extra="ignore")
    except ValidationError:
        problem = ProblemDetails(
            title=_phrase(response.status_code),
            status=response.status_code,
            detail=f"{response.request.url} answered without a problem document",
            request_id=response.headers.get("x-request-id", ""),
        )
    default = ServerError if response.status_code >= 500 else ApiError
    return BY_STATUS.get(response.status_code, default)(problem)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"Status {status}"

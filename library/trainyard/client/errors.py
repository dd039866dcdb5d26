"""What the SDK raises: the errors of a call to the server, and two of its own.

TrainyardError
├── NotConfiguredError         no address of a server is known
├── UnknownReferenceError      nothing, or more than one thing, goes by this name
└── ConnectionFailedError, ApiError and its kinds   see `trainyard.protocol.rest.errors`
"""

from __future__ import annotations

from trainyard.protocol.rest.errors import (
    ApiError,
    ConflictError,
    ConnectionFailedError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    ServerError,
    TrainyardError,
    UnauthenticatedError,
    error_of,
)

__all__ = [
    "ApiError",
    "ConflictError",
    "ConnectionFailedError",
    "ForbiddenError",
    "InvalidRequestError",
    "NotConfiguredError",
    "NotFoundError",
    "ServerError",
    "TrainyardError",
    "UnauthenticatedError",
    "UnknownReferenceError",
    "error_of",
]


class NotConfiguredError(TrainyardError):
    """No address of a server is known."""


class UnknownReferenceError(TrainyardError):
    """Nothing, or more than one thing, goes by this name."""

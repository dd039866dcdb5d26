"""Errors of the SDK: those of a call to the server, and two of its own.

TrainyardError
├── NotConfiguredError         no address of a server is known
├── UnknownReferenceError      no object, or more than one, has this name
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
    """No object, or more than one, has this name."""

"""Errors of the SDK: failed calls to the server, and wrong input from the user.

TrainyardError
├── UsageError                 a file, a setting or a name is wrong
│   ├── NotConfiguredError     no server address is known
│   └── UnknownReferenceError  no object, or more than one, has this name
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
    "UsageError",
]


class UsageError(TrainyardError, ValueError):
    """A file, a setting or a name from the user is wrong."""

    def __init__(self, text: str, *, remedy: str = "") -> None:
        super().__init__(text)
        self.remedy = remedy
        """What the user can write instead; may be empty."""


class NotConfiguredError(UsageError):
    """No server address is known."""


class UnknownReferenceError(UsageError):
    """No object, or more than one object, has this name."""

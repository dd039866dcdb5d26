"""Errors of the SDK: those of a call to the server, and those of what the user gave.

TrainyardError
├── UsageError                 a file, a setting or a name is wrong; no request was sent for it
│   ├── NotConfiguredError     no address of a server is known
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
    """A file, a setting or a name that the user gave is wrong."""

    def __init__(self, text: str, *, remedy: str = "") -> None:
        super().__init__(text)
        self.remedy = remedy
        """What to write instead; may be empty."""


class NotConfiguredError(UsageError):
    """No address of a server is known."""


class UnknownReferenceError(UsageError):
    """No object, or more than one, has this name."""

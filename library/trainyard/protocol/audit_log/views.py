"""Rows of the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from trainyard.base.model_base import RecordModel

AuditValue = str | int | float | bool | tuple[str, ...] | None
"""A value before or after a change."""


class AuditOutcome(StrEnum):
    """What a request did."""

    CHANGED = "changed"
    """The change was stored, or repeated one that was stored before."""
    READ = "read"
    """The request read something sensitive, or used the admin token."""
    REFUSED = "refused"
    """The request was refused: 401, 403, 429, or 404 of an object that may be hidden."""


class AuditRow(RecordModel):
    """A row of the audit log. The digest covers all other fields that are not null."""

    seq: int
    """Number of the row, without gaps from 1."""
    at: datetime
    """Time of the request, by the clock of its server."""
    operation: str
    """Operation of the OpenAPI document, or of the server's command line."""
    outcome: AuditOutcome
    status: int | None = None
    """HTTP status of a refused request."""
    count: int | None = None
    """Number of refused attempts that the row counts; null for a row of one attempt."""
    user: str | None = None
    """Name of the user; for a failed login, of the user who was named."""
    user_id: str | None = None
    token: str | None = None
    """Name of the token; null after a login by password."""
    token_id: str | None = None
    session_id: str | None = None
    """Id of the browser session."""
    break_glass: bool | None = None
    """True if the request used the admin token, or a session of it; otherwise null."""
    address: str | None = None
    """Address of the client. A count has the IPv4 address or the /64 of IPv6."""
    object: str | None = None
    """What the request was about, as the path of the API, such as `projects/vision/members/ada`."""
    project: str | None = None
    before: Mapping[str, AuditValue] | None = None
    """Changed fields before the change. Secrets, passwords and `env` are never included."""
    after: Mapping[str, AuditValue] | None = None
    """The same fields after the change."""
    request_id: str | None = None
    """Value of the header `X-Request-Id` of the response."""
    previous: str
    """Digest of the row before; 64 zeros for the first row."""
    digest: str
    """SHA-256 of the row, in hexadecimal digits."""

"""Sessions and tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import RecordModel, SpecModel
from trainyard.spec.job import JobName


class SessionRequest(SpecModel):
    """Body of a browser login, with either a token or a one-time code."""

    token: Annotated[str, Field(max_length=200)] | None = None
    """API token or admin token."""
    code: Annotated[str, Field(max_length=200)] | None = None
    """Code from a one-time login link."""


class SessionView(RecordModel):
    """The session of the logged-in user."""

    name: str
    """Name of the token behind the session."""
    kind: Literal["admin", "api"]
    """Scope of the session."""
    expires_at: datetime | None
    """Time at which the session ends; absent for a bearer token."""


class TokenRequest(SpecModel):
    """Body of a request for a new token."""

    name: JobName
    """Purpose of the token."""
    kind: Literal["api", "join", "login"] = "api"
    """Scope of the token: `api` for people and programs, `join` for a node or source, `login` for a
    browser login."""
    expires_in_seconds: Annotated[int, Field(ge=60, le=10 * 365 * 86_400)] | None = None
    """Lifetime of the token. The default is a year for `api`, an hour for `join`, and ten minutes
    for `login`. Ten minutes is also the maximum for `login`."""


class TokenView(RecordModel):
    """A token; only the response to its creation contains the secret."""

    id: str
    """Id of the token."""
    name: str
    """Purpose of the token."""
    kind: Literal["admin", "api", "join", "login", "node", "source"]
    """Scope of the token."""
    secret: str | None = None
    """Secret of the token; only present in the response to its creation."""
    created_at: datetime
    """Time at which the token was created."""
    expires_at: datetime | None
    """Time at which the token expires; absent if it does not expire."""
    last_used_at: datetime | None
    """Time at which the token was last used; absent before its first use."""

"""Sessions and tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import RecordModel, SpecModel
from trainyard.spec.job import JobName


class SessionRequest(SpecModel):
    """Body of a browser login: a token or a one-time code."""

    token: Annotated[str, Field(max_length=200)] | None = None
    """An API or admin token."""
    code: Annotated[str, Field(max_length=200)] | None = None
    """The code of a one-time login link."""


class SessionView(RecordModel):
    """The session of the logged-in user."""

    name: str
    """Name of the token behind the session."""
    kind: Literal["admin", "api"]
    """Its scope."""
    expires_at: datetime | None
    """When the session ends; absent for a bearer token."""


class TokenRequest(SpecModel):
    """Body of a new token."""

    name: JobName
    """What it is for."""
    kind: Literal["api", "join", "login"] = "api"
    """`api` for people and programs, `join` for a node or source, `login` for a browser login."""
    expires_in_seconds: Annotated[int, Field(ge=60, le=10 * 365 * 86_400)] | None = None
    """Lifetime; when absent, a year for `api`, an hour for `join`, and ten minutes for `login`,
    which is also the longest for `login`."""


class TokenView(RecordModel):
    """A token; its secret is shown once."""

    id: str
    """Id."""
    name: str
    """What it is for."""
    kind: Literal["admin", "api", "join", "login", "node", "source"]
    """What it may do."""
    secret: str | None = None
    """The token itself; present only in the response to its creation."""
    created_at: datetime
    """When it was made."""
    expires_at: datetime | None
    """When it ends."""
    last_used_at: datetime | None
    """When it was last used."""

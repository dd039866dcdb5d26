"""Sessions and tokens."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import RecordModel, SpecModel
from trainyard.protocol.user_accounts.views import GivenPassword, SessionUser
from trainyard.spec.job import JobName


class Permission(StrEnum):
    """A right that an operation of the API needs; docs/access.md describes each."""

    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"
    JOBS_DELETE = "jobs:delete"
    CODE_RUN = "code:run"
    SHELL_RUN = "shell:run"
    PROJECTS_READ = "projects:read"
    MEMBERS_WRITE = "members:write"
    SECRETS_USE = "secrets:use"
    SECRETS_WRITE = "secrets:write"
    PROJECTS_WRITE = "projects:write"
    PROJECTS_ADMIN = "projects:admin"
    NODES_READ = "nodes:read"
    NODES_WRITE = "nodes:write"
    SOURCES_READ = "sources:read"
    SOURCES_WRITE = "sources:write"
    METRICS_READ = "metrics:read"
    TOKENS_ADMIN = "tokens:admin"
    USERS_ADMIN = "users:admin"
    AUDIT_READ = "audit:read"


class SessionRequest(SpecModel):
    """Body of a browser login: a token, a one-time code, or name and password."""

    token: Annotated[str, Field(max_length=200)] | None = None
    """API token or admin token."""
    code: Annotated[str, Field(max_length=200)] | None = None
    """Code from a one-time login link."""
    name: Annotated[str, Field(max_length=100)] | None = None
    """Name of a user."""
    password: GivenPassword | None = None
    """Password of the user."""


class SessionView(RecordModel):
    """The session of the logged-in user."""

    name: str
    """Name of the token behind the session; after a login by password, the name of the user."""
    kind: Literal["admin", "api", "password", "issuer"]
    """Kind of the token behind the session; `password` after a login by password, `issuer` after
    single sign-on."""
    permissions: tuple[Permission, ...] = ()
    """Permissions of the session or token."""
    expires_at: datetime | None
    """Time at which the session ends; absent for a bearer token."""
    user: SessionUser | None = None
    """The user; null from an older server."""
    is_shared: bool = False
    """Whether the server has more than one active user."""


class TokenRequest(SpecModel):
    """Body of a request for a new token."""

    name: JobName
    """Purpose of the token."""
    kind: Literal["api", "join", "login"] = "api"
    """Use of the token: `api` for people and programs, `join` for a node or source, `login` for a
    browser login."""
    scopes: Annotated[tuple[Permission, ...], Field(min_length=1)] | None = None
    """Permissions of a token of kind `api`, each once. Null gives every permission of the user
    except `audit:read`, `sources:write`, `tokens:admin` and `users:admin`."""
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
    """Use of the token."""
    user: str | None = None
    """Name of the token's user; null for tokens of machines."""
    scopes: tuple[Permission, ...] | None = None
    """Permissions of a token of kind `api`; null if it was created without scopes."""
    secret: str | None = None
    """Secret of the token; only present in the response to its creation."""
    created_at: datetime
    """Time at which the token was created."""
    expires_at: datetime | None
    """Time at which the token expires; absent if it does not expire."""
    last_used_at: datetime | None
    """Time at which the token was last used; absent before its first use."""

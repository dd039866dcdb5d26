"""Members of projects and their service accounts: views, request bodies and events."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import RecordModel, SpecModel
from trainyard.protocol.event_kinds import EventData
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.projects import MaxSlots, ProjectRole
from trainyard.protocol.user_accounts.views import MemberName, UserKind, UserName, UserState
from trainyard.spec.job import JobName

ServiceRole = Literal[ProjectRole.VIEWER, ProjectRole.MEMBER]
"""Roles of a service account."""


MaxRunning = Annotated[int, Field(ge=0, le=10**6, json_schema_extra={"unit": "jobs"})]


class UserLimits(SpecModel):
    """Limits of a user in a project; absent fields of a change stay as they are."""

    max_slots: MaxSlots | None = None
    """Maximum number of slots that the user's jobs in the project hold at the same time; null for
    none."""
    max_running: MaxRunning | None = None
    """Maximum number of the user's jobs in the project that hold slots at the same time; null for
    none."""


class MemberRequest(UserLimits):
    """Body of a request that gives a user a role in a project, and own limits.

    An own limit replaces that of the project; absent limits stay, and null removes one.
    """

    role: ProjectRole
    """Role in the project; it replaces a former role."""


class EveryoneRequest(SpecModel):
    """Body of a request that gives every active person a role in a project."""

    role: ProjectRole | None
    """Role of every active person; null takes it away."""


class MemberView(RecordModel):
    """A member of a project."""

    user: str
    """Name of the user."""
    kind: UserKind
    """Whether the user is a person or a service account."""
    role: ProjectRole
    """Role in the project."""
    since: datetime
    """Time at which the user became a member."""
    max_slots: int | None = None
    """Own limit of slots; null for that of the project."""
    max_running: int | None = None
    """Own limit of jobs that hold slots; null for that of the project."""
    effective_max_slots: int | None = None
    """Maximum number of slots that the member's jobs in the project hold at the same time;
    unlimited when null."""
    effective_max_running: int | None = None
    """Maximum number of the member's jobs in the project that hold slots at the same time;
    unlimited when null."""
    held_slots: int = 0
    """Number of slots that the member's jobs in the project hold."""
    running_jobs: int = 0
    """Number of the member's jobs in the project that hold slots."""


class ServiceAccountRequest(SpecModel):
    """Body of a request for a new service account of a project."""

    name: UserName
    """Name of the account without `@` and its project. No later account can have it."""
    role: ServiceRole = ProjectRole.MEMBER
    """Role in the project."""


class ServiceAccountView(RecordModel):
    """A service account of a project."""

    name: str
    """Name of the account with its project, such as `nightly@vision`."""
    role: ProjectRole
    """Role in the project."""
    state: UserState
    """Whether the account is active; a disabled one has no tokens."""
    created_at: datetime
    """Time at which the account was created."""


class ServiceTokenRequest(SpecModel):
    """Body of a request for a token of a service account."""

    name: JobName
    """Purpose of the token."""
    scopes: Annotated[tuple[Permission, ...], Field(min_length=1)] | None = None
    """Permissions of the token, each once. Null gives every permission of the account except
    `audit:read`, `sources:write`, `tokens:admin` and `users:admin`."""
    expires_in_seconds: Annotated[int, Field(ge=60, le=10 * 365 * 86_400)] | None = None
    """Lifetime of the token; a year by default."""


class OwnerRequest(SpecModel):
    """Body of a request that gives a job to another user."""

    owner: MemberName
    """Name of an active user who may submit jobs in the job's project."""


class MembersChanged(EventData):
    """A user, a group of the issuer, or every person got or lost a role in a project."""

    project: str
    """Name of the project."""
    user: str | None
    """Name of the user; null for every person, and for a group."""
    group: str | None = None
    """Name of the issuer's group; null for a user, and for every person."""
    before: ProjectRole | None
    """Role before the change; null for none."""
    after: ProjectRole | None
    """Role after the change; null for none."""


class LimitsChanged(EventData):
    """The limits of a user in a project, or those of each user, were changed."""

    project: str
    """Name of the project."""
    user: str | None
    """Name of the user with own limits; null for the limits of each user."""
    before: UserLimits
    """Limits before the change."""
    after: UserLimits
    """Limits after the change."""


class ServiceTokenChanged(EventData):
    """A token of a service account was created or revoked."""

    project: str
    """Name of the project."""
    user: str
    """Name of the service account."""
    token: str
    """Name of the token."""
    revoked: bool
    """Whether the token was revoked; otherwise it was created."""


class OwnerChanged(EventData):
    """A job was given to another user."""

    before: str | None
    """Name of the former owner."""
    owner: str
    """Name of the owner."""

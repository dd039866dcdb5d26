"""Users: their roles, invitations, passwords and browser sessions."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from trainyard.base.model_base import RecordModel, SpecModel
from trainyard.base.names import EMAIL, MEMBER_NAME, UNIX_ACCOUNT, USER_NAME
from trainyard.spec.job import JobName

BUILT_IN_USER = "admin"
"""Name of the user that holds the admin token."""
MIN_PASSWORD, MAX_PASSWORD = 12, 1000
"""Minimum and maximum length of a password, in characters."""


class ClusterRole(StrEnum):
    """Roles in the cluster; each has the permissions of the roles before it."""

    USER = "user"
    """Every person."""
    OPERATOR = "operator"
    ADMIN = "admin"


class UserState(StrEnum):
    """Whether a user may do anything."""

    ACTIVE = "active"
    DISABLED = "disabled"


class UserKind(StrEnum):
    """Whether a user is a person or a program."""

    PERSON = "person"
    SERVICE = "service"
    """A service account, which belongs to one project."""


UserName = Annotated[str, Field(pattern=USER_NAME)]
"""Name of a user: unique for ever, so a name is never given to another user."""
MemberName = Annotated[str, Field(pattern=MEMBER_NAME)]
Email = Annotated[str, Field(pattern=EMAIL, max_length=254)]
UnixAccount = Annotated[str, Field(pattern=UNIX_ACCOUNT, examples=["ada"])]
"""Name of an account of the nodes' operating system."""
GivenPassword = Annotated[SecretStr, Field(max_length=MAX_PASSWORD)]
"""A password that the server compares with a stored hash."""
NewPassword = Annotated[SecretStr, Field(min_length=MIN_PASSWORD, max_length=MAX_PASSWORD)]
Code = Annotated[SecretStr, Field(max_length=200)]


class UserRequest(SpecModel):
    """Body of a request for a new user."""

    name: UserName
    """Name of the user. It never changes, and no later user can have it."""
    email: Email | None = None
    """E-mail address, for display only."""
    role: ClusterRole = ClusterRole.USER
    """Role in the cluster."""


class UserChange(SpecModel):
    """Body of a request to change a user; omitted fields stay."""

    role: ClusterRole | None = None
    """New role. It ends the user's open invitation, and the invitations that the user made."""
    email: Email | None = None
    """New e-mail address; null removes it."""
    state: UserState | None = None
    """`disabled` ends the user's sessions, tokens, invitations and commands for good; `active` lets
    the user log in again."""
    unix_account: UnixAccount | None = None
    """Account under which nodes with `TRAINYARD_RUN_AS=owner` run the user's jobs; null removes
    it. The next attempt of each job uses the new account."""


class UserView(RecordModel):
    """A user."""

    id: str
    """Id of the user."""
    name: str
    """Name of the user."""
    email: str | None
    """E-mail address; null without one."""
    role: ClusterRole
    """Role in the cluster."""
    state: UserState
    """Whether the user may log in."""
    is_built_in: bool
    """Whether this is the user of the admin token, which cannot be changed."""
    has_password: bool
    """Whether the user has a password."""
    invited_until: datetime | None
    """End of the open invitation; null without one."""
    created_at: datetime
    """Time at which the user was created."""
    disabled_at: datetime | None
    """Time at which the user was disabled; null for an active user."""
    last_used_at: datetime | None
    """Time at which a session or token of the user was last used, to the minute; null if never."""
    kind: UserKind = UserKind.PERSON
    """Whether the user is a person or a service account."""
    project: str | None = None
    """Project of a service account; null for a person."""
    has_ended: bool = False
    """Whether this is a service account that has ended for good."""
    issuer: str | None = None
    """Issuer of the linked identity; null without one."""
    unix_account: str | None = None
    """Account under which nodes with `TRAINYARD_RUN_AS=owner` run the user's jobs; null without
    one."""


class InvitationView(RecordModel):
    """An invitation with its code; only this response contains the code."""

    user: UserView
    """The invited user."""
    code: str
    """One-time code with which the user sets the password."""
    link: str
    """Address of the dashboard's page for this code."""
    expires_at: datetime
    """End of the invitation."""


class InvitationCode(SpecModel):
    """Body of a question about an invitation."""

    code: Code
    """Code of the invitation."""


class InvitationCheck(RecordModel):
    """A valid invitation, as its holder sees it."""

    name: str
    """Name of the invited user."""
    expires_at: datetime
    """End of the invitation."""
    replaces_password: bool
    """Whether the user already has a password."""


class InvitationAcceptance(InvitationCode):
    """Body that sets the password of an invited user."""

    password: NewPassword
    """The new password: 12 to 1,000 characters, not the user's name."""


class PasswordChange(SpecModel):
    """Body of a change of the caller's password."""

    current: GivenPassword
    """The present password."""
    new: NewPassword
    """The new password: 12 to 1,000 characters, not the user's name."""


class PasswordLogin(SpecModel):
    """Body of a request for a token by a password, for the command line."""

    name: Annotated[str, Field(max_length=100)]
    """Name of the user."""
    password: GivenPassword
    """Password of the user."""
    token_name: JobName
    """Purpose of the token, such as the name of the machine."""
    expires_in_seconds: Annotated[int, Field(ge=60, le=10 * 365 * 86_400)] | None = None
    """Lifetime of the token; a year by default."""


class LoginWay(RecordModel):
    """One way to log a browser in."""

    kind: Literal["token", "password", "issuer"]
    """`token`: a token or a login code; `password`: name and password; `issuer`: single sign-on."""
    name: str | None = None
    """Name of the issuer; null for the other ways."""


class LoginWays(RecordModel):
    """The ways to log a browser in, the most likely first."""

    ways: tuple[LoginWay, ...]
    """Ways that exist on this server."""


class SessionUser(RecordModel):
    """The user of a session or token."""

    id: str
    """Id of the user."""
    name: str
    """Name of the user."""
    role: ClusterRole
    """Role in the cluster."""
    email: str | None
    """E-mail address; null without one."""
    has_password: bool
    """Whether the user has a password."""
    issuer: str | None = None
    """Issuer of the linked identity; null without one."""


class BrowserSession(RecordModel):
    """A browser session of the caller."""

    id: str
    """Id of the session."""
    created_at: datetime
    """Time of the login."""
    expires_at: datetime
    """Time at which the session ends."""
    last_used_at: datetime | None
    """Time of the last request, to the minute; null before the first."""
    address: str | None
    """Address from which the browser logged in; null if unknown."""
    browser: str | None
    """User agent of the browser; null if unknown."""
    is_current: bool
    """Whether this request belongs to the session."""

"""Invitations: one-time codes with which users set their passwords."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, ClassVar

from pydantic import SecretStr
from sqlalchemy import Connection, Table, insert, select, update

from server.api.auth.browser_sessions import Browser, NewSession, store_session
from server.api.auth.endings import end_access, end_invitations
from server.api.auth.permissions import held_by_role
from server.api.auth.principals import is_valid, lock_users, most_of
from server.api.auth.tokens import hash_token, make_secret
from server.api.sso.identities import unlink
from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.database.tables import tokens
from server.core.errors import UnauthenticatedError
from server.core.people.user_tables import invitations, users
from server.core.subject import Actor
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.user_accounts.views import ClusterRole, InvitationCheck, UserState

LIFETIME = timedelta(days=7)
PREFIX = "ty_invitation_"


@dataclass(frozen=True)
class NewInvitation:
    """A new invitation; the database stores only a hash of `code`."""

    code: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class OpenInvitation(TypedRow):
    """An invitation that is neither used nor expired, with its user."""

    table: ClassVar[Table] = invitations
    hash: str
    user_id: str
    maker_id: str
    maker_token_id: str | None
    expires_at: datetime
    name: Annotated[str, users.c.name]
    state: Annotated[UserState, users.c.state]
    password: Annotated[str | None, users.c.password] = field(repr=False)


def store_invitation(
    context: Context, connection: Connection, user_id: str, *, actor: Actor
) -> NewInvitation:
    """Store an invitation of a user, which ends earlier ones; the caller has locked the user."""
    now = context.now()
    end_invitations(connection, invitations.c.user_id == user_id, now)
    made = NewInvitation(PREFIX + make_secret(), now + LIFETIME)
    row = {
        "hash": hash_token(made.code),
        "user_id": user_id,
        "maker_id": actor.owner_id,
        "maker_token_id": actor.token_id,
        "created_at": now,
        "expires_at": made.expires_at,
    }
    connection.execute(insert(invitations).values(row))
    return made


def check_invitation(context: Context, code: SecretStr) -> InvitationCheck:
    """Return what the holder of a code sees.

    Raises:
        UnauthenticatedError: the code is unknown, expired or used up, or its maker may no longer
            invite users.
    """
    with context.database.read() as connection:
        found = _open(connection, hash_token(code.get_secret_value()), context.now())
    return InvitationCheck(
        name=found.name, expires_at=found.expires_at, replaces_password=found.password is not None
    )


def accept_invitation(
    context: Context, code: SecretStr, *, new_hash: str, browser: Browser
) -> NewSession:
    """Use up a code: set the user's password, end the user's access, and open a new session.

    A reset also ends the tokens and the commands, because whoever knew the former password may have
    made them.

    Raises:
        UnauthenticatedError: as `check_invitation`.
    """
    with context.database.write() as connection:
        user_id = use_invitation(context, connection, hash_token(code.get_secret_value()))
        its = update(users).where(users.c.id == user_id)
        connection.execute(its.values(password=new_hash))
        return store_session(context, connection, user_id=user_id, browser=browser)


def use_invitation(context: Context, connection: Connection, code_hash: str) -> str:
    """Use up the invitation with this hash of its code; lock its user, and return the user's id.

    All access of the user ends. A linked identity is removed, because whoever had the account may
    have linked the own one.

    Raises:
        UnauthenticatedError: as `check_invitation`.
    """
    now = context.now()
    first = _open(connection, code_hash, now)
    lock_users(connection, [first.user_id, first.maker_id])
    found = _open(connection, code_hash, now)  # again, now that nothing can change
    end_access(connection, [found.user_id], now)
    unlink(context, connection, found.user_id)
    return found.user_id


def _open(connection: Connection, code_hash: str, now: datetime) -> OpenInvitation:
    its = invitations.c.hash == code_hash
    is_open = invitations.c.ended_at.is_(None) & (invitations.c.expires_at > now)
    query = OpenInvitation.select().join(users, users.c.id == invitations.c.user_id)
    found = OpenInvitation.one_or_none(connection, query.where(its, is_open))
    if (
        found is None
        or found.state != UserState.ACTIVE
        or not _may_still_invite(connection, found, now)
    ):
        raise UnauthenticatedError(
            "the invitation is unknown, expired or used up; a new one comes from an admin"
        )
    return found


def _may_still_invite(connection: Connection, found: OpenInvitation, now: datetime) -> bool:
    """Return whether the maker's user and token still have the permission to invite users."""
    maker = select(users.c.role).where(
        users.c.id == found.maker_id, users.c.state == UserState.ACTIVE
    )
    role: ClusterRole | None = connection.scalar(maker)
    if role is None:
        return False
    of_role = held_by_role(ClusterRole(role))
    if found.maker_token_id is None:
        return Permission.USERS_ADMIN in of_role
    its = tokens.c.id == found.maker_token_id
    query = select(tokens.c.kind, tokens.c.scopes).where(its, is_valid(now))
    row = connection.execute(query).one_or_none()
    if row is None:
        return False
    return Permission.USERS_ADMIN in of_role & most_of(row.kind, row.scopes)

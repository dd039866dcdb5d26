"""Logins by password, and changes of the own password."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar

from sqlalchemy import Connection, Table, exists, select, update

from server.api.accounts.throttle import Guessed, of_account, of_address
from server.api.auth.browser_sessions import Browser, NewSession, store_session
from server.api.auth.endings import end_invitations_of, end_sessions
from server.api.auth.permissions import ALL
from server.api.auth.principals import IS_ACTIVE, Principal, lock_users
from server.api.auth.service import ListedToken, create_token
from server.core.addresses import counted_as
from server.core.audit.request_rows import CallerIdentity, name_caller, no_change
from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.errors import ConflictError, UnauthenticatedError
from server.core.people.user_tables import sessions, users
from server.core.subject import Actor
from trainyard.protocol.rest.access import TokenRequest
from trainyard.protocol.user_accounts.views import ClusterRole

WRONG = "name or password is wrong, or the user is disabled"


@dataclass(frozen=True, slots=True)
class Account(TypedRow):
    """An active user with the hash of the password."""

    table: ClassVar[Table] = users
    id: str
    name: str
    role: ClusterRole
    password: Annotated[str | None, users.c.password] = field(repr=False)


def find_account(context: Context, name: str) -> Account | None:
    """Return the active user of this name; None if there is none."""
    query = Account.select().where(users.c.name == name.strip().lower(), IS_ACTIVE)
    with context.database.read() as connection:
        return Account.one_or_none(connection, query)


def counters(context: Context, name: str, host: str) -> list[Guessed]:
    """Return what a login by password counts for: its address and its account.

    The account does not count for an address from which the user has logged in by password, so
    that strangers cannot keep the user out.
    """
    name = name.strip().lower()
    theirs = exists().where(
        sessions.c.user_id == users.c.id,
        sessions.c.address == counted_as(host),
        sessions.c.token_id.is_(None),  # a stolen token with few scopes must not lift the limit
        sessions.c.expires_at > context.now(),
    )
    with context.database.read() as connection:
        is_known = connection.scalar(select(users.c.id).where(users.c.name == name, theirs))
    return [of_address(host)] if is_known else [of_address(host), of_account(name)]


def open_password_session(context: Context, account: Account, *, browser: Browser) -> NewSession:
    """Open a session of a user with the right password.

    Raises:
        UnauthenticatedError: the user was disabled, or the password changed, since it was checked.
    """
    with context.database.write() as connection:
        _hold_account(connection, account)
        return store_session(context, connection, user_id=account.id, browser=browser)


def create_password_token(
    context: Context, account: Account, *, name: str, expires_in_seconds: int | None
) -> tuple[ListedToken, str]:
    """Create an API token without scopes for a user with the right password.

    Raises:
        UnauthenticatedError: the user was disabled, or the password changed, since it was checked.
        ConflictError: another API token of the user has this name.
        InvalidRequestError: the name is reserved.
    """
    request = TokenRequest(name=name, expires_in_seconds=expires_in_seconds)
    actor = Actor(
        account.name,
        user_id=account.id,
        user_name=account.name,
        role=account.role,
        token_allows=ALL,
    )
    name_caller(CallerIdentity(user=account.name, user_id=account.id))
    return create_token(context, request, actor=actor, hold=partial(_hold_account, account=account))


def change_password(
    context: Context, principal: Principal, account: Account, *, new_hash: str, browser: Browser
) -> NewSession | None:
    """Store a new password; end the user's sessions, and the invitations that the user made.

    A thief may have copied the cookie of the caller's session, so this session ends, too.

    Returns:
        A new session for the caller, or None if the caller used a token.

    Raises:
        UnauthenticatedError: the user was disabled, or the password changed, since it was checked.
    """
    with context.database.write() as connection:
        _hold_account(connection, account)
        its = update(users).where(users.c.id == account.id)
        connection.execute(its.values(password=new_hash))
        end_sessions(connection, sessions.c.user_id == account.id)
        end_invitations_of(connection, [account.id], context.now())
        if principal.session_id is None:
            return None
        return store_session(context, connection, user_id=account.id, browser=browser)


def store_new_parameters(context: Context, account: Account, *, new_hash: str) -> bool:
    """Replace the hash of a password by one with the present parameters.

    Return False, and store nothing, if the password was changed since it was checked.
    """
    same = (users.c.id == account.id) & (users.c.password == account.password)
    with no_change(), context.database.write() as connection:
        return connection.execute(update(users).where(same).values(password=new_hash)).rowcount == 1


def own_account(context: Context, principal: Principal) -> Account:
    """Return the account of the caller.

    Raises:
        ConflictError: the caller's user has no password.
    """
    user = principal.user
    account = None if user is None else find_account(context, user.name)
    if account is None or account.password is None:
        raise ConflictError(
            "you have no password to change; an invitation by an admin sets the first one"
        )
    return account


def _hold_account(connection: Connection, account: Account) -> None:
    """Lock the user; check that the user is active and has the password that was checked."""
    lock_users(connection, [account.id])
    same = users.c.password == account.password
    query = select(users.c.id).where(users.c.id == account.id, same, IS_ACTIVE)
    if connection.scalar(query) is None:
        raise UnauthenticatedError(WRONG)

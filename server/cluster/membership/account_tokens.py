"""Tokens of service accounts, which the maintainers of the project create, list and revoke.

The tokens belong to the project. So they do not end with their maker's token or role.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection, select

from server.api.accounts.service_accounts import ServiceAccount, one_account
from server.api.auth.endings import end_tokens
from server.api.auth.service import ListedToken, create_token, list_tokens
from server.cluster.membership.holding import hold_members
from server.core.context import Context
from server.core.database.tables import tokens
from server.core.errors import ConflictError, NotFoundError
from server.core.events.store import NewEvent, append_event
from server.core.people.unix_accounts import check_may_act_for
from server.core.people.visible_projects import check_visible
from server.core.subject import Actor, Subject
from server.core.visibility.scope import Scope
from trainyard.protocol.rest.access import Permission, TokenRequest
from trainyard.protocol.user_accounts.members import ServiceTokenChanged, ServiceTokenRequest
from trainyard.protocol.user_accounts.views import UserState


def create_account_token(
    context: Context, project: str, name: str, *, request: ServiceTokenRequest, actor: Actor
) -> tuple[ListedToken, str]:
    """Create a token of an account; return its row and its secret, which is not stored.

    Raises:
        NotFoundError: the actor sees no such project, or the project has no such account.
        ForbiddenError: the actor lacks `members:write` in the project, or the token would have
            permissions that the actor does not have; or the account has a Unix account, and the
            actor lacks `users:admin`.
        ConflictError: another token of the account has this name, the account has too many, or an
            admin has disabled it.
        UnauthenticatedError: the actor's token has ended meanwhile.
    """
    account = _visible(context, project, name, scope=actor.scope)

    def hold(connection: Connection) -> None:
        found = _hold_account(context, connection, account, project=project, actor=actor)
        if found.state != UserState.ACTIVE:
            raise ConflictError(f"{name} is disabled; an admin may enable it")
        check_may_act_for(connection, found.id, actor=actor)
        _changed(context, connection, found, project=project, token=request.name, actor=actor)

    wanted = TokenRequest(
        name=request.name, scopes=request.scopes, expires_in_seconds=request.expires_in_seconds
    )
    owner = replace(actor, user_id=account.id, user_name=account.name, token_id=None)
    return create_token(context, wanted, actor=owner, hold=hold)


def list_account_tokens(
    context: Context, project: str, name: str, *, scope: Scope, after: str | None, limit: int
) -> Sequence[ListedToken]:
    """Return at most `limit` unrevoked tokens of an account with ids below `after`, the newest
    first.

    Raises:
        NotFoundError: the caller sees no such project, or the project has no such account.
        ForbiddenError: the caller lacks `members:write` in the project.
    """
    account = _visible(context, project, name, scope=scope)
    return list_tokens(context, after=after, limit=limit, user_id=account.id)


def revoke_account_token(
    context: Context, project: str, name: str, *, token_id: str, actor: Actor
) -> None:
    """Revoke a token of an account; its commands in running attempts end.

    Raises:
        NotFoundError: the actor sees no such project, or the project has no such account; or the
            account has no such token, or it is already revoked.
        ForbiddenError: the actor lacks `members:write` in the project.
        UnauthenticatedError: the actor's token has ended meanwhile.
    """
    account = _visible(context, project, name, scope=actor.scope)
    with context.database.write() as connection:
        _hold_account(context, connection, account, project=project, actor=actor)
        its = (tokens.c.id == token_id) & (tokens.c.user_id == account.id)
        query = select(tokens.c.name).where(its, tokens.c.revoked_at.is_(None))
        token: str | None = connection.scalar(query.with_for_update())
        if token is None:
            raise NotFoundError(f"{name} has no token with the id {token_id!r}")
        end_tokens(connection, its, context.now())
        _changed(
            context, connection, account, project=project, token=token, actor=actor, revoked=True
        )


def _visible(context: Context, project: str, name: str, *, scope: Scope) -> ServiceAccount:
    with context.database.read() as connection:
        check_visible(connection, project, scope=scope, permission=Permission.MEMBERS_WRITE)
        return one_account(connection, project, name)


def _hold_account(
    context: Context,
    connection: Connection,
    account: ServiceAccount,
    *,
    project: str,
    actor: Actor,
) -> ServiceAccount:
    """Lock account and actor, so that the account's end finds its tokens."""
    hold_members(context, connection, project, whom=[account.id], actor=actor)
    return one_account(connection, project, account.name)


def _changed(
    context: Context,
    connection: Connection,
    account: ServiceAccount,
    *,
    project: str,
    token: str,
    actor: Actor,
    revoked: bool = False,
) -> None:
    data = ServiceTokenChanged(project=project, user=account.name, token=token, revoked=revoked)
    verb = "revoked" if revoked else "created"
    message = f"the token {token!r} of {account.name} was {verb}"
    append_event(context, connection, NewEvent(data, actor, Subject(project=project), message))

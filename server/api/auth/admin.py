"""The admin token: created at the first start, replaced by a command, stored as a hash."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import Connection, Text, and_, cast, delete, insert, or_, select, true, update
from sqlalchemy.exc import IntegrityError

from server.api.auth.endings import (
    PARAMETERS,
    end_commands,
    end_invitations,
    end_sessions,
    end_tokens,
    with_descendants,
)
from server.api.auth.principals import IS_ACTIVE, is_valid, lock_users
from server.api.auth.tokens import TokenKind, hash_token, make_token
from server.core.audit.request_rows import append_rows, command_row
from server.core.context import Context
from server.core.database.engine import batches
from server.core.database.metric_and_log_tables import shells
from server.core.database.rows import Token
from server.core.database.source_tables import node_requests
from server.core.database.tables import tokens
from server.core.people.user_tables import invitations, sessions, users
from server.core.subject import ADMIN_USER_ID
from trainyard.base.ids import make_id
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.user_accounts.views import ClusterRole
from trainyard.run.atomic import create_file

ADMIN_ID = make_id(milliseconds=0, entropy=bytes(10))
"""Fixed id of the only admin token, so that only one of several new servers inserts a token."""
ADMIN_NAME = "admin"
CLOCKS = timedelta(seconds=60)
"""Assumed maximum difference between the clocks of two servers. A token counts as made by the
former admin token even if it seems older than that admin token, by at most this difference.
"""
LASTING = (TokenKind.API, TokenKind.JOIN)
"""Kinds of tokens that an admin token creates and that stay valid after the admin token is
replaced."""
OF_MACHINES = (TokenKind.NODE, TokenKind.SOURCE)
"""Kinds of tokens that a registration with a join token creates."""

CREATES = frozenset({Permission.TOKENS_ADMIN, Permission.USERS_ADMIN})
"""Permissions with which a token creates other access."""


@dataclass(frozen=True)
class AdminRotation:
    """Result of replacing the admin token: what has ended, and which tokens and requests remain."""

    token: str
    """Text of the new admin token."""
    sessions: int
    """Number of browser sessions that ended."""
    codes: int
    """Number of login codes that ended."""
    commands: int
    """Number of commands that ended; all were open in running attempts."""
    makers: Sequence[Token]
    """API tokens that could create tokens or users, and tokens made with them; all have ended."""
    invitations: int
    """Number of open invitations that ended."""
    invited: Sequence[str]
    """Names of active users who were invited, or whose password was reset, since the former admin
    token was made."""
    admins: Sequence[str]
    """Names of the active users with the role `admin`, which may create users."""
    made: Sequence[Token]
    """Valid tokens that the former admin token or its join tokens made, the oldest first."""
    earlier: Sequence[Token]
    """Valid tokens that earlier admin tokens made."""
    requests: Sequence[str]
    """Ids of open requests for nodes; only requests that a person made are included."""


def ensure_admin_token(context: Context) -> Path | None:
    """Create the admin token if there is none, and return the path of its file.

    Several processes may start at once. On one machine, all of them use the file of the first
    process. On several machines, only the token that is stored first becomes valid. The processes
    on the other machines delete the files that they have created.

    Returns:
        The path, or None if the token existed already or its file is on another machine.
    """
    if _stored_hash(context) is not None:
        return None
    path = context.settings.state_dir / "admin.token"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    create_file(path, make_token(TokenKind.ADMIN) + "\n", mode=0o600)
    token = path.read_text(encoding="utf-8").strip()
    try:
        with context.database.write() as connection:
            connection.execute(insert(tokens).values(_row(context, token)))
            append_rows(connection, [command_row(context, "admin_token_created")])
    except IntegrityError:
        if _stored_hash(context) != hash_token(token):
            path.unlink(missing_ok=True)
            return None
    return path


def replace_admin_token(context: Context) -> AdminRotation:
    """Replace the admin token; end its sessions, all login codes, and its running commands.

    All login codes end, because only the admin token makes them. API tokens with the scope
    `tokens:admin` or `users:admin` end too, because they could create tokens or users while a
    person reads the list, and so do all invitations. The other tokens that the former admin token
    made stay valid until `revoke_made` revokes them.
    """
    token, now = make_token(TokenKind.ADMIN), context.now()
    with context.database.write() as connection:
        # Lock first all who may create tokens or users, because they may be doing so now.
        admins = connection.execute(
            select(users.c.id, users.c.name)
            .where(users.c.role == ClusterRole.ADMIN.value, IS_ACTIVE)
            .order_by(users.c.name)
        ).all()
        lock_users(connection, [row.id for row in admins])
        query = select(tokens.c.created_at).where(tokens.c.id == ADMIN_ID)
        former = connection.scalar(query.with_for_update())
        commands = end_commands(connection, shells.c.token_id == ADMIN_ID)
        ended = end_sessions(connection, sessions.c.token_id == ADMIN_ID)
        codes = (tokens.c.kind == TokenKind.LOGIN) & tokens.c.revoked_at.is_(None)
        spent = connection.execute(update(tokens).where(codes).values(revoked_at=now))
        makers = _makers(connection, now)
        invited = end_invitations(connection, true(), now)
        _end_some(connection, makers, now)
        connection.execute(delete(tokens).where(tokens.c.id == ADMIN_ID))
        connection.execute(insert(tokens).values(_row(context, token)))
        append_rows(connection, [command_row(context, "admin_token_replaced")])
        lasting = tokens.c.kind.in_([*LASTING, *OF_MACHINES])
        # Other users made their own tokens.
        its = or_(tokens.c.user_id == ADMIN_USER_ID, tokens.c.user_id.is_(None))
        query = Token.select().where(lasting, its, is_valid(now)).order_by(tokens.c.created_at)
        left = Token.all(connection, query)
        asked = node_requests.c
        by_hand = select(asked.id).where(asked.by_person, asked.ended_at.is_(None))
        requests = connection.scalars(by_hand.order_by(asked.id)).all()
        invited_users = _invited(connection, former)
    made = [row for row in left if former is None or row.created_at >= former - CLOCKS]
    return AdminRotation(
        token=token,
        sessions=ended,
        codes=spent.rowcount,
        commands=commands,
        makers=makers,
        invitations=invited,
        admins=[row.name for row in admins if row.id != ADMIN_USER_ID],
        invited=invited_users,
        made=made,
        earlier=[row for row in left if row not in made],
        requests=requests,
    )


def unknown_machines(
    context: Context, *, nodes: Collection[str], sources: Collection[str]
) -> list[str]:
    """Return which of the given machines have no valid token, in the form `node gpu-1`."""
    with context.database.read() as connection:
        known = {
            (kind, name)
            for kind in OF_MACHINES
            for name in connection.scalars(
                select(tokens.c[kind.value]).where(tokens.c.kind == kind, is_valid(context.now()))
            )
        }
    wanted = [(TokenKind.NODE, name) for name in nodes]
    wanted += [(TokenKind.SOURCE, name) for name in sources]
    return [f"{kind} {name}" for kind, name in wanted if (kind, name) not in known]


def revoke_made(
    context: Context, made: Sequence[Token], *, nodes: Collection[str], sources: Collection[str]
) -> list[Token]:
    """Revoke the API and join tokens among `made`, and the tokens of the named machines.

    Browser sessions and commands in running attempts end too, if a revoked token started them. The
    result has all revoked tokens.
    """
    going = [row for row in made if row.kind in LASTING]
    now = context.now()
    with context.database.write() as connection:
        lock_users(connection, [ADMIN_USER_ID])
        for kind, names in ((TokenKind.NODE, nodes), (TokenKind.SOURCE, sources)):
            of_kind = (tokens.c.kind == kind) & tokens.c[kind.value].in_(names)
            going += Token.all(connection, Token.select().where(of_kind, is_valid(now)))
        _end_some(connection, going, now)
        names = [row.name for row in going]
        revoked = {"revoked": names, "rows": len(going)}
        append_rows(connection, [command_row(context, "tokens_revoked", before=revoked)])
    return going


def _end_some(connection: Connection, some: Sequence[Token], now: datetime) -> None:
    for batch in batches(sorted(row.id for row in some), PARAMETERS):
        end_tokens(connection, tokens.c.id.in_(batch), now)


def _invited(connection: Connection, former: datetime | None) -> Sequence[str]:
    """Return the names of active users who were invited, or whose password was reset, since a time.

    Not only by the built-in user, because the former admin token may have made another admin.
    """
    query = select(users.c.name).join(invitations, invitations.c.user_id == users.c.id)
    query = query.where(IS_ACTIVE)
    if former is not None:
        query = query.where(invitations.c.created_at >= former - CLOCKS)
    return connection.scalars(query.distinct().order_by(users.c.name)).all()


def _makers(connection: Connection, now: datetime) -> Sequence[Token]:
    """Return the valid API tokens that may create tokens or users, and those made with them."""
    named = (cast(tokens.c.scopes, Text).contains(f'"{each}"') for each in sorted(CREATES))
    creates = and_(tokens.c.kind == TokenKind.API, is_valid(now), or_(*named))
    theirs = tokens.c.id.in_(with_descendants(creates))
    return Token.all(connection, Token.select().where(theirs).order_by(tokens.c.id))


def _stored_hash(context: Context) -> str | None:
    with context.database.read() as connection:
        return connection.scalar(select(tokens.c.hash).where(tokens.c.id == ADMIN_ID))


def _row(context: Context, token: str) -> dict[str, object]:
    return {
        "id": ADMIN_ID,
        "name": ADMIN_NAME,
        "kind": TokenKind.ADMIN,
        "hash": hash_token(token),
        "created_at": context.now(),
        "user_id": ADMIN_USER_ID,
    }

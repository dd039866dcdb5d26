"""The end of access: of sessions and tokens, with the commands and invitations that need them.

The caller has locked the users of what ends (`lock_users`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, delete, func, or_, select, update

from server.core.database.metric_and_log_tables import shells
from server.core.database.tables import tokens
from server.core.people.user_tables import invitations, sessions


def end_commands(connection: Connection, theirs: ColumnElement[bool]) -> int:
    """Close the open commands in attempts that meet a condition; return their number."""
    is_open = theirs & shells.c.ended_at.is_(None) & shells.c.closed.is_(False)
    return connection.execute(update(shells).where(is_open).values(closed=True)).rowcount


def end_sessions(connection: Connection, which: ColumnElement[bool]) -> int:
    """Delete the browser sessions that meet a condition, and close their commands.

    Return the number of sessions.
    """
    query = select(sessions.c.id).where(which).order_by(sessions.c.id).with_for_update()
    ids = connection.scalars(query).all()
    if ids:
        end_commands(connection, shells.c.session_id.in_(ids))
        connection.execute(delete(sessions).where(sessions.c.id.in_(ids)))
    return len(ids)


def end_invitations(connection: Connection, which: ColumnElement[bool], now: datetime) -> int:
    """End the open invitations that meet a condition; return their number."""
    is_open = which & invitations.c.ended_at.is_(None) & (invitations.c.expires_at > now)
    return connection.execute(update(invitations).where(is_open).values(ended_at=now)).rowcount


def end_tokens(connection: Connection, ids: Sequence[str], now: datetime) -> int:
    """Revoke tokens; end their sessions, commands and invitations; return the commands' number."""
    revoked = update(tokens).where(tokens.c.id.in_(ids))
    connection.execute(revoked.values(revoked_at=func.coalesce(tokens.c.revoked_at, now)))
    commands = end_commands(connection, shells.c.token_id.in_(ids))
    end_sessions(connection, sessions.c.token_id.in_(ids))
    end_invitations(connection, invitations.c.maker_token_id.in_(ids), now)
    return commands


def end_access(connection: Connection, user_id: str, now: datetime) -> None:
    """End all access of a user for good: sessions, tokens, commands and invitations."""
    theirs = select(tokens.c.id).where(tokens.c.user_id == user_id, tokens.c.revoked_at.is_(None))
    ids = connection.scalars(theirs.order_by(tokens.c.id).with_for_update()).all()
    end_tokens(connection, ids, now)
    end_sessions(connection, sessions.c.user_id == user_id)
    end_commands(connection, shells.c.user_id == user_id)
    end_invitations_of(connection, user_id, now)


def end_invitations_of(connection: Connection, user_id: str, now: datetime) -> None:
    """End the open invitations to a user, and those that the user made."""
    theirs = or_(invitations.c.user_id == user_id, invitations.c.maker_id == user_id)
    end_invitations(connection, theirs, now)

"""The end of access: of sessions and tokens, with the commands and invitations that need them.

The caller has locked the users of what ends (`lock_users`).
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, Connection, delete, or_, select, update

from server.core.database.engine import batches
from server.core.database.metric_and_log_tables import shells
from server.core.database.tables import tokens
from server.core.people.user_tables import invitations, sessions

PARAMETERS = 1000
"""Maximum number of ids in one statement."""


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
    for some in batches(ids, PARAMETERS):
        end_commands(connection, shells.c.session_id.in_(some))
        connection.execute(delete(sessions).where(sessions.c.id.in_(some)))
    return len(ids)


def end_invitations(connection: Connection, which: ColumnElement[bool], now: datetime) -> int:
    """End the open invitations that meet a condition; return their number."""
    is_open = which & invitations.c.ended_at.is_(None) & (invitations.c.expires_at > now)
    return connection.execute(update(invitations).where(is_open).values(ended_at=now)).rowcount


def end_tokens(connection: Connection, which: ColumnElement[bool], now: datetime) -> int:
    """Revoke the tokens that meet a condition; end their sessions, commands and invitations.

    A condition, because a statement holds fewer parameters than a person may have tokens. Return
    the number of commands.
    """
    valid = which & tokens.c.revoked_at.is_(None)
    theirs = select(tokens.c.id).where(valid)
    connection.execute(theirs.order_by(tokens.c.id).with_for_update()).all()
    commands = end_commands(connection, shells.c.token_id.in_(theirs))
    end_sessions(connection, sessions.c.token_id.in_(theirs))
    end_invitations(connection, invitations.c.maker_token_id.in_(theirs), now)
    connection.execute(update(tokens).where(valid).values(revoked_at=now))
    return commands


def end_access(connection: Connection, user_id: str, now: datetime) -> None:
    """End all access of a user for good: sessions, tokens, commands and invitations."""
    end_tokens(connection, tokens.c.user_id == user_id, now)
    end_sessions(connection, sessions.c.user_id == user_id)
    end_commands(connection, shells.c.user_id == user_id)
    end_invitations_of(connection, user_id, now)


def end_invitations_of(connection: Connection, user_id: str, now: datetime) -> None:
    """End the open invitations to a user, and those that the user made."""
    theirs = or_(invitations.c.user_id == user_id, invitations.c.maker_id == user_id)
    end_invitations(connection, theirs, now)

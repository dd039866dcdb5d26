"""The end of access: of sessions and tokens, with the commands and invitations that need them.

The caller has locked the users of what ends (`lock_users`). An end waits for the transactions that
`write_as` opens, and ends what they have stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Select, delete, or_, select, update

from server.api.auth.permissions import held_by_role
from server.api.auth.principals import hold_token
from server.api.auth.tokens import TokenKind
from server.core.context import Context
from server.core.database.engine import batches
from server.core.database.metric_and_log_tables import shells
from server.core.database.tables import attempts, jobs, tokens
from server.core.people.member_tables import has_role
from server.core.people.user_tables import invitations, sessions, users
from server.core.subject import Actor
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.projects import ProjectRole
from trainyard.protocol.user_accounts.views import ClusterRole

PARAMETERS = 1000
"""Maximum number of ids in one statement."""


def end_commands(connection: Connection, theirs: ColumnElement[bool]) -> int:
    """Close the open commands in attempts that meet a condition; return their number."""
    is_open = theirs & shells.c.ended_at.is_(None) & shells.c.closed.is_(False)
    # Locked in one order, because two endings with different conditions may meet.
    locked = select(shells.c.id).where(is_open).order_by(shells.c.id)
    connection.execute(locked.with_for_update()).all()
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


def with_descendants(which: ColumnElement[bool]) -> Select[tuple[str]]:
    """Return the query of the ids of unrevoked tokens that meet a condition, and of all tokens made
    with them."""
    is_left = tokens.c.revoked_at.is_(None)
    ending = select(tokens.c.id).where(which, is_left).cte("ending", recursive=True)
    made = select(tokens.c.id).join(ending, tokens.c.maker_token_id == ending.c.id).where(is_left)
    return select(ending.union(made).c.id)


def end_tokens(connection: Connection, which: ColumnElement[bool], now: datetime) -> int:
    """Revoke the tokens that meet a condition, and the tokens made with them.

    Their sessions, commands and invitations end. The argument is a condition, because a statement
    holds fewer parameters than a person may have tokens. Return the number of commands.
    """
    theirs = with_descendants(which)
    locked = select(tokens.c.id).where(tokens.c.id.in_(theirs)).order_by(tokens.c.id)
    connection.execute(locked.with_for_update()).all()
    commands = end_commands(connection, shells.c.token_id.in_(theirs))
    end_sessions(connection, sessions.c.token_id.in_(theirs))
    end_invitations(connection, invitations.c.maker_token_id.in_(theirs), now)
    # Last, because the query finds only tokens that are not revoked.
    connection.execute(update(tokens).where(tokens.c.id.in_(theirs)).values(revoked_at=now))
    return commands


def suspend_tokens(connection: Connection, which: ColumnElement[bool], now: datetime) -> None:
    """Let the tokens that meet a condition not count; their sessions and commands end."""
    theirs = which & tokens.c.revoked_at.is_(None) & tokens.c.suspended_at.is_(None)
    locked = select(tokens.c.id).where(theirs).order_by(tokens.c.id)
    ids = connection.scalars(locked.with_for_update()).all()
    for some in batches(ids, PARAMETERS):
        end_commands(connection, shells.c.token_id.in_(some))
        end_sessions(connection, sessions.c.token_id.in_(some))
        suspended = update(tokens).where(tokens.c.id.in_(some))
        connection.execute(suspended.values(suspended_at=now))


def end_access(connection: Connection, user_ids: Sequence[str], now: datetime) -> None:
    """End all access of users for good: sessions, tokens, commands and invitations."""
    end_tokens(connection, tokens.c.user_id.in_(user_ids), now)
    end_sessions(connection, sessions.c.user_id.in_(user_ids))
    end_commands(connection, shells.c.user_id.in_(user_ids))
    end_invitations_of(connection, user_ids, now)


def end_invitations_of(connection: Connection, user_ids: Sequence[str], now: datetime) -> None:
    """End the open invitations to users, and those that the users made."""
    to, by = invitations.c.user_id.in_(user_ids), invitations.c.maker_id.in_(user_ids)
    end_invitations(connection, or_(to, by), now)


def end_beyond_role(
    connection: Connection, user_id: str, role: ClusterRole, *, now: datetime
) -> None:
    """End what a user's new role in the cluster no longer allows: invitations and join tokens."""
    end_invitations_of(connection, [user_id], now)
    if Permission.TOKENS_ADMIN not in held_by_role(ClusterRole(role)):
        joins = (tokens.c.user_id == user_id) & (tokens.c.kind == TokenKind.JOIN)
        end_tokens(connection, joins, now)


def end_forbidden_commands(
    connection: Connection,
    now: datetime,
    *,
    project: str | None = None,
    user_id: str | None = None,
) -> None:
    """Close the open commands of users who may no longer run commands in the job's project.

    Args:
        connection: the transaction that has changed the roles.
        now: the present time, at which groups of the issuer may have expired.
        project: the project whose roles changed; None for all.
        user_id: the user whose roles changed; None for all.
    """
    roles = [role for role in ProjectRole if Permission.SHELL_RUN in held_by_role(role)]
    # The project of the job of a command, as a column of a query.
    of_job = (
        select(jobs.c.project)
        .join(attempts, attempts.c.job_id == jobs.c.id)
        .where(attempts.c.id == shells.c.attempt_id)
        .correlate(shells)  # also within an EXISTS
        .scalar_subquery()
    )
    theirs = shells.c.user_id.is_not(None) & ~has_role(shells.c.user_id, of_job, roles, now=now)
    if project is not None:
        theirs &= of_job == project
    if user_id is not None:
        theirs &= shells.c.user_id == user_id
    end_commands(connection, theirs)


@contextmanager
def write_as(context: Context, *actors: Actor) -> Iterator[Connection]:
    """Open a writing transaction for people, whose access stays until the transaction ends.

    Every change that a person orders is made in such a transaction. The locks of all transactions
    are in this order, so that no two of them deadlock: users, tokens and sessions, projects, jobs,
    and all other rows. Parts of the system need no access.

    Raises:
        UnauthenticatedError: the access of an actor has ended since its request was authenticated,
            or it allows less than then.
    """
    people: list[Actor] = []
    for actor in actors:
        if not any(actor == each and actor.scope == each.scope for each in people):
            people.append(actor)
    with context.database.write() as connection:
        if len(people) > 1:
            _share_users(connection, people)
        for each in sorted(people, key=lambda actor: actor.token_id or ""):
            hold_token(connection, each, context.now())
        yield connection


def _share_users(connection: Connection, people: Sequence[Actor]) -> None:
    """Keep users from being locked by others, in the order of `lock_users`."""
    ids = {each.user_id for each in people if each.credential_hash is not None} - {None}
    query = select(users.c.id).where(users.c.id.in_(ids)).order_by(users.c.id)
    connection.execute(query.with_for_update(read=True)).all()

"""Unix accounts of users: the account of a job's owner, and the accounts that nodes look up."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, exists, func, or_, select

from server.core.database.tables import jobs, operations
from server.core.errors import ConflictError, ForbiddenError
from server.core.people.user_tables import users
from server.core.subject import Actor
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.states import OperationState
from trainyard.protocol.worker_messages import MAX_ACCOUNTS

owners_account = select(users.c.unix_account).where(users.c.id == jobs.c.owner_id).scalar_subquery()
"""The Unix account of a job's owner, as a column of a query of jobs; null without one."""
OPEN = (OperationState.QUEUED, OperationState.RUNNING)
operations_account = (
    select(users.c.unix_account).where(users.c.id == operations.c.owner_id).scalar_subquery()
)
"""The Unix account of an operation's owner, as a column of a query of operations."""


def accounts_of(
    connection: Connection, user_ids: Collection[str], *, hold: bool = False
) -> Mapping[str, str | None]:
    """Return Unix accounts by user id; the account is None for a user without one.

    With `hold`, they do not change until the transaction ends.
    """
    query = select(users.c.id, users.c.unix_account).where(users.c.id.in_(user_ids))
    if hold:
        query = query.order_by(users.c.id).with_for_update(read=True)
    return {row.id: row.unix_account for row in connection.execute(query)}


def account_of(connection: Connection, user_id: str) -> str | None:
    """Return the Unix account of a user; None without one."""
    found: str | None = connection.scalar(select(users.c.unix_account).where(users.c.id == user_id))
    return found


def check_may_act_for(connection: Connection, owner_id: str, *, actor: Actor) -> None:
    """Refuse an actor who may not decide what runs under the Unix account of a user.

    Raises:
        ForbiddenError: the user has an account, and the actor neither is this user nor holds
            `users:admin`.
    """
    if actor.user_id == owner_id or actor.may(Permission.USERS_ADMIN):
        return
    query = select(users.c.name).where(users.c.id == owner_id, users.c.unix_account.is_not(None))
    name = connection.scalar(query)
    if name is not None:
        raise ForbiddenError(
            f"{name} has a Unix account, so only {name}, and a holder of {Permission.USERS_ADMIN}, "
            "decides what runs under it; fork the job to run it under your own account"
        )


def read_needed_accounts(connection: Connection) -> tuple[str, ...]:
    """Return the accounts of owners with jobs or open operations, by name.

    Finished jobs count too, because operations on their checkpoints run under the account; and so
    do the operations of a deleted job.
    """
    of_operation = (operations.c.owner_id == users.c.id) & operations.c.state.in_(OPEN)
    owns = or_(exists().where(jobs.c.owner_id == users.c.id), exists().where(of_operation))
    named = select(users.c.unix_account).where(users.c.unix_account.is_not(None), owns)
    # At the same time, two admins may give the last account.
    return tuple(connection.scalars(named.order_by(users.c.unix_account).limit(MAX_ACCOUNTS)))


def check_room_for_account(connection: Connection, user_id: str) -> None:
    """Check that a user may get an account, because each heartbeat of a node has all answers.

    Raises:
        ConflictError: `MAX_ACCOUNTS` other users have accounts.
    """
    others = (users.c.unix_account.is_not(None), users.c.id != user_id)
    if (connection.scalar(select(func.count()).where(*others)) or 0) >= MAX_ACCOUNTS:
        raise ConflictError(f"{MAX_ACCOUNTS:,} other users have Unix accounts; remove one first")

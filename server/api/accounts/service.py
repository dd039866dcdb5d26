"""Orders of people about users: create and change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from server.api.accounts.invitations import NewInvitation, store_invitation
from server.api.accounts.queries import UserRow, read_user, user_view
from server.api.auth.endings import end_access, end_beyond_role, end_forbidden_commands
from server.api.auth.permissions import held_by_user
from server.api.auth.principals import hold_token, lock_users
from server.api.auth.service import RESERVED_NAMES
from server.api.sso.groups import gives_cluster_roles
from server.api.sso.identities import unlink
from server.core.audit.request_rows import note_change
from server.core.context import Context
from server.core.database.tables import jobs
from server.core.errors import ConflictError, InvalidRequestError, NotFoundError
from server.core.people.unix_accounts import check_room_for_account
from server.core.people.user_tables import users
from server.core.subject import ADMIN_USER_ID, Actor
from trainyard.base.problems import Problem
from trainyard.protocol.states import JobState
from trainyard.protocol.user_accounts.views import (
    ClusterRole,
    UserChange,
    UserKind,
    UserRequest,
    UserState,
    UserView,
)


def create_user(
    context: Context, request: UserRequest, *, actor: Actor
) -> tuple[UserView, NewInvitation]:
    """Store a user and an invitation to set the first password.

    Raises:
        UnauthenticatedError: the actor's token has ended meanwhile.
        InvalidRequestError: the name is reserved.
        ForbiddenError: the user would have permissions that the actor does not have.
        ConflictError: a user has, or had, this name.
    """
    if request.name in RESERVED_NAMES:
        raise InvalidRequestError.at(
            "/name", f"{request.name!r} is reserved; so are {', '.join(sorted(RESERVED_NAMES))}"
        )
    check_role(request.role, actor, pointer="/role")
    user_id = context.new_id()
    row = {
        "id": user_id,
        "name": request.name,
        "email": request.email,
        "role": request.role,
        "state": UserState.ACTIVE,
        "created_at": context.now(),
    }
    try:
        with context.database.write() as connection:
            hold_token(connection, actor, context.now())
            connection.execute(insert(users).values(row))
            invitation = store_invitation(context, connection, user_id, actor=actor)
            after = {each: row[each] for each in ("name", "email", "role", "state")}
            note_change(object=f"users/{user_id}", after=after)
            return user_view(context, connection, user_id), invitation
    except IntegrityError:
        raise ConflictError(
            f"a user is or was named {request.name!r}: names are never given twice; take another"
        ) from None


def invite(context: Context, user_id: str, *, actor: Actor) -> tuple[UserView, NewInvitation]:
    """Make a new invitation of a user, which also resets a forgotten password.

    Earlier invitations of the user end.

    Raises:
        NotFoundError: no user has this id.
        ForbiddenError: the user has permissions that the actor does not have.
        ConflictError: the user is disabled or built in.
        UnauthenticatedError: the actor's token has ended meanwhile.
    """
    with context.database.write() as connection:
        user = _locked(connection, user_id, actor=actor)
        hold_token(connection, actor, context.now())
        check_role(user.role, actor, pointer="path/user_id")
        if user.state != UserState.ACTIVE:
            raise ConflictError(f"{user.name} is disabled; enable the user first")
        invitation = store_invitation(context, connection, user_id, actor=actor)
        return user_view(context, connection, user_id), invitation


def change_user(context: Context, user_id: str, change: UserChange, *, actor: Actor) -> UserView:
    """Change role, e-mail address, state or Unix account of a user; a repeat changes nothing.

    A new role ends the user's open invitation and those that the user made. `disabled` ends all
    access of the user for good. Queued jobs of the user wait for nodes with the new account.

    Raises:
        NotFoundError: no user has this id.
        InvalidRequestError: the new role or state is null.
        ForbiddenError: the user has, or would have, permissions that the actor does not have.
        ConflictError: the user is built in, or is the actor, who may not change the own role, state
            and Unix account; or the issuer's groups give the role; or another user has the Unix
            account, or too many users have one.
        UnauthenticatedError: the actor's token has ended meanwhile.
    """
    now = context.now()
    is_legal_for_service = change.model_fields_set <= {"state", "unix_account"}
    with context.database.write() as connection:
        user = _locked(connection, user_id, actor=actor, is_legal_for_service=is_legal_for_service)
        hold_token(connection, actor, now)
        check_role(user.role, actor, pointer="path/user_id")
        values = _values(user, change)
        if user_id == actor.user_id and values.keys() & {"role", "state", "unix_account"}:
            raise ConflictError(
                "the own role, state and Unix account cannot be changed; another admin may"
            )
        if "role" in values:
            _refuse_role_of_issuer(context, user)
            check_role(values["role"], actor, pointer="/role")
            end_beyond_role(connection, user_id, values["role"], now=now)
        if "state" in values:
            is_disabled = values["state"] == UserState.DISABLED
            values["disabled_at"] = now if is_disabled else None
            if is_disabled:
                end_access(connection, [user_id], now)
            elif user.has_ended:
                raise ConflictError(f"{user.name} has ended for good; create another account")
        if values:
            _store(connection, user, values)
            end_forbidden_commands(connection, now, user_id=user_id)
        return user_view(context, connection, user_id)


def _store(connection: Connection, user: UserRow, values: Mapping[str, Any]) -> None:
    """Store changed fields of a user and their audit row.

    Raises:
        ConflictError: another user has the Unix account, or too many users have one.
    """
    if values.get("unix_account") is not None:
        check_room_for_account(connection, user.id)
    try:
        connection.execute(update(users).where(users.c.id == user.id).values(**values))
    except IntegrityError:
        raise ConflictError(
            f"unix_account={values['unix_account']!r} belongs to another user: an account runs the "
            "jobs of one user; `trainyard users` shows whose"
        ) from None
    given = values.keys() - {"disabled_at"}
    before = {"name": user.name, **{each: getattr(user, each) for each in given}}
    note_change(before=before, after={each: values[each] for each in given})
    if "unix_account" in values:  # the next round computes the demands of these jobs again
        waits = (jobs.c.owner_id == user.id) & (jobs.c.state == JobState.QUEUED)
        # By id, as in every statement that locks several jobs.
        locked = select(jobs.c.id).where(waits).order_by(jobs.c.id).with_for_update()
        connection.execute(update(jobs).where(jobs.c.id.in_(locked)).values(demand=None))


def unlink_user(context: Context, user_id: str, *, actor: Actor) -> None:
    """Remove the identity of a user; sessions, tokens and roles that came with it end.

    Raises:
        NotFoundError: no user has this id, or the user has no identity.
        ForbiddenError: the user has permissions that the actor does not have.
        ConflictError: the user is built in, or a service account.
        UnauthenticatedError: the actor's token has ended meanwhile.
    """
    with context.database.write() as connection:
        user = _locked(connection, user_id, actor=actor)
        hold_token(connection, actor, context.now())
        check_role(user.role, actor, pointer="path/user_id")
        if not unlink(context, connection, user_id):
            raise NotFoundError(f"no identity of the issuer is linked to {user.name}")


def check_role(role: ClusterRole, actor: Actor, *, pointer: str) -> None:
    """Check that the actor has all permissions of a user with this role.

    Raises:
        ForbiddenError: the actor lacks one, which the error names.
    """
    for permission in sorted(held_by_user(ClusterRole(role))):
        if not actor.may(permission):
            problem = Problem(pointer=pointer, detail=f"the role {role} has {permission}")
            raise actor.refusal(permission, [problem])


def _locked(
    connection: Connection, user_id: str, *, actor: Actor, is_legal_for_service: bool = False
) -> UserRow:
    """Lock a user together with the actor's user, and return the user.

    Raises:
        NotFoundError: no user has this id.
        ConflictError: the user is built in, or a service account.
    """
    lock_users(connection, [user_id, actor.user_id])
    user = read_user(connection, user_id)
    if user_id == ADMIN_USER_ID:
        raise ConflictError(
            f"{user.name} is the built-in user of the admin token: it has no password and cannot "
            "be changed; `python -m server admin-token` replaces the token"
        )
    if user.kind == UserKind.SERVICE and not is_legal_for_service:
        raise ConflictError(
            f"{user.name} is a service account of project {user.project!r}: it has no password and "
            "no role in the cluster; a maintainer of the project ends it"
        )
    return user


def _refuse_role_of_issuer(context: Context, user: UserRow) -> None:
    if gives_cluster_roles(context.settings) and user.issuer is not None:
        raise ConflictError(
            f"the groups of the issuer give {user.name} the role in the cluster: change the groups"
        )


def _values(user: UserRow, change: UserChange) -> dict[str, Any]:
    """Return the columns that a request changes.

    Raises:
        InvalidRequestError: the role or the state is null.
    """
    wanted: Mapping[str, Any] = change.model_dump(exclude_unset=True)
    for name, value in wanted.items():
        if value is None and name not in {"email", "unix_account"}:
            raise InvalidRequestError.at(f"/{name}", "is null; omit the field to keep its value")
    return {name: value for name, value in wanted.items() if value != getattr(user, name)}

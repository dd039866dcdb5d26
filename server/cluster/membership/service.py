"""Changes of members and service accounts, each with an event of the project.

Every change locks the users whose roles it changes, so that a request that opens a command or makes
a token either finds the new role (`hold_token`), or is found by the change.
"""

from __future__ import annotations

from sqlalchemy import Connection, and_, delete, func, select, update

from server.api.accounts.service_accounts import create_account, end_accounts, one_account
from server.api.auth.endings import end_forbidden_commands
from server.api.auth.permissions import held_by_role
from server.cluster.membership.holding import hold_members
from server.cluster.membership.limit_users import limit_member
from server.cluster.membership.queries import (
    NamedUser,
    member_view,
    no_user,
    own_role,
    role_of_everyone,
    role_of_group,
    user_named,
)
from server.cluster.projects.groups import regrouping
from server.cluster.projects.queries import lock_project, project_row, views
from server.core.audit.request_rows import note_change
from server.core.context import Context
from server.core.database.scheduler_tables import projects
from server.core.database.upsert import insert_or_replace
from server.core.errors import ConflictError, NotFoundError
from server.core.events.store import NewEvent, append_event
from server.core.people.identity_tables import group_roles, user_groups
from server.core.people.member_tables import members
from server.core.people.user_tables import users
from server.core.people.visible_projects import check_visible
from server.core.subject import ADMIN_USER_ID, Actor, Subject
from server.core.visibility.scope import Scope
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.projects import ProjectRole, ProjectView
from trainyard.protocol.user_accounts.members import (
    MemberRequest,
    MembersChanged,
    MemberView,
    ServiceAccountRequest,
    ServiceAccountView,
)
from trainyard.protocol.user_accounts.views import UserKind, UserState

MAX_GROUP_ROLES = 200
"""Maximum number of groups of the issuer with a role in one project."""


def set_member(
    context: Context, project: str, name: str, *, request: MemberRequest, actor: Actor
) -> MemberView:
    """Give a user a role in a project, and own limits; a repeat changes nothing.

    The role replaces a former role. Limits that the request lacks stay.

    Raises:
        InvalidRequestError: `max_slots` is above that of the project.
        NotFoundError: the actor sees no such project, or no user has this name, or it is a service
            account of another project.
        ForbiddenError: the actor lacks `members:write` in the project, or a permission of the role.
        ConflictError: the user is built in or disabled, or a service account would get a role that
            only persons have.
        UnauthenticatedError: the actor's access has ended meanwhile.
    """
    role = request.role
    with context.database.write() as connection:
        user = _hold_member(context, connection, project, name=name, actor=actor)
        before = own_role(connection, project, user.id)
        check_gives(actor.scope, role, project)
        _refuse_service(user, before, role)
        if user.state != UserState.ACTIVE:
            raise ConflictError(f"{name} is disabled; an admin may enable the user")
        if before != role:
            keys = {"project": project, "user_id": user.id}
            if before is None:
                row = {**keys, "role": role, "created_at": context.now()}
                insert_or_replace(connection, members, [row])
            else:
                its = and_(*(members.c[key] == value for key, value in keys.items()))
                connection.execute(update(members).where(its).values(role=role))
            _changed(
                context, connection, project, user=user, before=before, after=role, actor=actor
            )
        limit_member(context, connection, project, user=user, change=request, actor=actor)
        return member_view(connection, project, user.id)


def remove_member(context: Context, project: str, name: str, *, actor: Actor) -> None:
    """End the membership of a user; the role of everyone stays.

    Raises:
        NotFoundError: the actor sees no such project, or the user is no member.
        ForbiddenError: the actor lacks `members:write` in the project.
        ConflictError: the user is a service account, which ends with its own call.
        UnauthenticatedError: the actor's access has ended meanwhile.
    """
    with context.database.write() as connection:
        user = _hold_member(context, connection, project, name=name, actor=actor)
        before = own_role(connection, project, user.id)
        if before is None:
            raise NotFoundError(f"{name} is no member of project {project!r}")
        if user.kind == UserKind.SERVICE:
            raise ConflictError(f"{name} is a service account; delete it instead")
        its = (members.c.project == project) & (members.c.user_id == user.id)
        with regrouping(connection, project):
            connection.execute(delete(members).where(its))
        _changed(context, connection, project, user=user, before=before, after=None, actor=actor)


def set_everyone(
    context: Context, project: str, *, role: ProjectRole | None, actor: Actor
) -> ProjectView:
    """Give every active person a role in a project, or take it away with None.

    Raises:
        NotFoundError: the actor sees no such project.
        ForbiddenError: the actor lacks `members:write` in the project.
        UnauthenticatedError: the actor's access has ended meanwhile.
    """
    with context.database.write() as connection:
        check_visible(connection, project, scope=actor.scope, permission=Permission.MEMBERS_WRITE)
        if role is not None:
            check_gives(actor.scope, role, project)
        if role_of_everyone(connection, project) != role:
            # All persons, because the role of each of them may change.
            persons = users.c.kind == UserKind.PERSON.value
            hold_members(context, connection, project, whom=persons, actor=actor)
            lock_project(connection, project)
            before = role_of_everyone(connection, project)
            its = update(projects).where(projects.c.name == project)
            connection.execute(its.values(everyone=role))
            _changed(
                context, connection, project, user=None, before=before, after=role, actor=actor
            )
    with context.database.read() as connection:
        return views(context, connection, [project_row(connection, project)], scope=actor.scope)[0]


def set_group(
    context: Context, project: str, group: str, *, role: ProjectRole | None, actor: Actor
) -> None:
    """Give the persons of a group of the issuer a role in a project, or take it away with None.

    The group may have no persons yet.

    Raises:
        NotFoundError: the actor sees no such project.
        ForbiddenError: the actor lacks `members:write` in the project.
        ConflictError: `MAX_GROUP_ROLES` groups have a role in the project.
        UnauthenticatedError: the actor's access has ended meanwhile.
    """
    with context.database.write() as connection:
        check_visible(connection, project, scope=actor.scope, permission=Permission.MEMBERS_WRITE)
        if role is not None:
            check_gives(actor.scope, role, project)
        if role_of_group(connection, project, group) == role:
            return
        of_group = select(user_groups.c.user_id).where(user_groups.c.group_name == group)
        persons = users.c.id.in_(of_group)
        hold_members(context, connection, project, whom=persons, actor=actor)
        lock_project(connection, project)
        before = role_of_group(connection, project, group)
        its = (group_roles.c.project == project) & (group_roles.c.group_name == group)
        if role is None:
            connection.execute(delete(group_roles).where(its))
        elif before is not None:
            connection.execute(update(group_roles).where(its).values(role=role))
        else:
            _check_room(connection, project)
            now = context.now()
            row = {"project": project, "group_name": group, "role": role, "created_at": now}
            insert_or_replace(connection, group_roles, [row])
        _changed(
            context,
            connection,
            project,
            user=None,
            before=before,
            after=role,
            actor=actor,
            group=group,
        )


def _check_room(connection: Connection, project: str) -> None:
    query = select(func.count()).select_from(group_roles).where(group_roles.c.project == project)
    if (connection.scalar(query) or 0) >= MAX_GROUP_ROLES:
        raise ConflictError(f"{MAX_GROUP_ROLES} groups have a role in {project!r}, the maximum")


def add_service_account(
    context: Context, project: str, *, request: ServiceAccountRequest, actor: Actor
) -> ServiceAccountView:
    """Store a service account of a project.

    Raises:
        NotFoundError: the actor sees no such project.
        ForbiddenError: the actor lacks `members:write` in the project.
        InvalidRequestError: the name is too long together with the project's.
        ConflictError: an account has, or had, this name; or the project has too many.
        UnauthenticatedError: the actor's access has ended meanwhile.
    """
    with context.database.write() as connection:
        check_visible(connection, project, scope=actor.scope, permission=Permission.MEMBERS_WRITE)
        check_gives(actor.scope, request.role, project)
        hold_members(context, connection, project, whom=(), actor=actor)
        # It stays until the account is stored, and two requests do not exceed the limit together.
        lock_project(connection, project)
        account = create_account(context, connection, project, request=request)
        user = user_named(connection, account.name)
        _changed(
            context, connection, project, user=user, before=None, after=request.role, actor=actor
        )
        return account.view


def remove_service_account(context: Context, project: str, name: str, *, actor: Actor) -> None:
    """End a service account for good: its tokens and commands end, and its name stays taken.

    Raises:
        NotFoundError: the actor sees no such project, or the project has no such account.
        ForbiddenError: the actor lacks `members:write` in the project.
        UnauthenticatedError: the actor's access has ended meanwhile.
    """
    with context.database.write() as connection:
        check_visible(connection, project, scope=actor.scope, permission=Permission.MEMBERS_WRITE)
        first = one_account(connection, project, name)
        hold_members(context, connection, project, whom=[first.id], actor=actor)
        lock_project(connection, project)
        account = one_account(connection, project, name)
        user = user_named(connection, name)
        with regrouping(connection, project):
            end_accounts(context, connection, [account.id])
        _changed(
            context, connection, project, user=user, before=account.role, after=None, actor=actor
        )


def check_gives(scope: Scope, role: ProjectRole, project: str) -> None:
    """Check that a caller has all permissions of a role that the caller gives in a project.

    Raises:
        ForbiddenError: the caller's token allows less than the role.
    """
    lacking = [each for each in held_by_role(role) if not scope.may(each, project)]
    if lacking:
        raise scope.refusal(sorted(lacking), project)


def _hold_member(
    context: Context,
    connection: Connection,
    project: str,
    *,
    name: str,
    actor: Actor,
) -> NamedUser:
    """Lock a user, the actor and a project; return the user.

    Raises:
        NotFoundError: the actor sees no such project, or no user has this name.
        ForbiddenError: the actor lacks `members:write` in the project.
        ConflictError: the user is built in.
        UnauthenticatedError: the actor's access has ended meanwhile.
    """
    check_visible(connection, project, scope=actor.scope, permission=Permission.MEMBERS_WRITE)
    user = user_named(connection, name)
    if user.id == ADMIN_USER_ID:
        raise ConflictError(f"{name} is built in: it is a maintainer of every project")
    hold_members(context, connection, project, whom=[user.id], actor=actor)
    lock_project(connection, project)
    return user_named(connection, name)


def _refuse_service(user: NamedUser, before: ProjectRole | None, role: ProjectRole) -> None:
    if user.kind != UserKind.SERVICE:
        return
    if before is None:  # it belongs to another project, or has ended
        raise no_user(user.name)
    if role == ProjectRole.MAINTAINER:
        raise ConflictError(
            f"{user.name} is a service account; legal roles: {ProjectRole.VIEWER}, "
            f"{ProjectRole.MEMBER}"
        )


def _changed(
    context: Context,
    connection: Connection,
    project: str,
    *,
    user: NamedUser | None,
    before: ProjectRole | None,
    after: ProjectRole | None,
    actor: Actor,
    group: str | None = None,
) -> None:
    """End the commands that the changed roles no longer allow, and store the event."""
    user_id = None if user is None else user.id
    end_forbidden_commands(connection, context.now(), project=project, user_id=user_id)
    whom = "every person" if user is None else user.name
    if group is not None:
        whom = f"the group {group}"
    words = f"{whom} has the role {after} in {project}" if after else f"{whom} lost {before}"
    message = f"{words}, before {before or 'none'}" if after else f"{words} in {project}"
    data = MembersChanged(
        project=project,
        user=None if user is None else user.name,
        group=group,
        before=before,
        after=after,
    )
    what = "everyone" if user is None else f"members/{user.name}"
    named = {} if group is None else {"group": group}
    note_change(
        object=f"projects/{project}/" + ("groups" if group is not None else what),
        project=project,
        before={"role": before, **named},
        after={"role": after, **named},
    )
    append_event(context, connection, NewEvent(data, actor, Subject(project=project), message))

"""Actor and subject of an event: who caused it, and what it is about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from server.core.errors import ForbiddenError
from server.core.visibility.scope import NO_SCOPE, SYSTEM_SCOPE, Scope
from trainyard.base.problems import Problem
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.user_accounts.views import ClusterRole

ADMIN_USER_ID = "0" * 25 + "1"
"""Fixed id of the built-in user, which holds the admin token and owns all that existed before
users."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Cause of a change: a person, a node or a part of the system.

    A person is named by the user, and for the built-in user by the token.
    """

    name: str
    token_id: str | None = None
    """Id of the person's token; None after a login by password."""
    is_admin: bool = False
    """Whether the token is the admin token."""
    user_id: str | None = None
    """Id of the person's user; None for nodes and parts of the system."""
    user_name: str | None = None
    """Name of the user."""
    role: ClusterRole | None = field(default=None, compare=False)
    """Role of the user at the time of the request."""
    session_id: str | None = None
    """Id of the browser session of the request; None for a token."""
    credential: str = field(default="", compare=False)
    """The token or session as words, such as `the token 'ci'`."""
    credential_hash: str | None = field(default=None, compare=False, repr=False)
    """Hash of the request's token, or of the cookie after a login by password. An id does not
    suffice, because a new admin token has the id of the former one.
    """
    permissions: frozenset[Permission] = field(default=frozenset(), compare=False, repr=False)
    """Permissions of the request, in the cluster or in at least one project; the parts of the
    system have all."""
    token_allows: frozenset[Permission] = field(default=frozenset(), compare=False, repr=False)
    """Permissions that the request's token leaves to its user, whatever roles the user has."""
    scope: Scope = field(default=NO_SCOPE, compare=False, repr=False)
    """Permissions of the request in each project."""

    @property
    def is_of_built_in(self) -> bool:
        """Whether the actor holds a token of the built-in user.

        Each of these tokens may stand for another person, so each is a person of its own.
        """
        return self.user_id in (None, ADMIN_USER_ID)

    @property
    def owner_id(self) -> str:
        """Id of the user who owns what the actor makes."""
        return self.user_id or ADMIN_USER_ID

    @property
    def identity(self) -> str:
        """Id of the person: of the user, or of the token of the built-in user; otherwise the name
        of a node or of a part of the system."""
        person = self.token_id if self.is_of_built_in else self.user_id
        return person or self.name

    def may_act_for(self, owner_id: str | None, token_id: str | None) -> bool:
        """Return whether the actor may act for the person who made something (see `made`)."""
        return self.is_admin or self.made(owner_id, token_id)

    def made(self, owner_id: str | None, token_id: str | None) -> bool:
        """Return whether the actor is the person who made something.

        Args:
            owner_id: the user who made it; None counts as the built-in user.
            token_id: the token that made it. It decides for the built-in user, whose tokens are
                different persons; None then matches no actor.
        """
        if owner_id not in (None, ADMIN_USER_ID):
            return owner_id == self.user_id
        return self.is_of_built_in and token_id is not None and token_id == self.token_id

    def may(self, permission: Permission) -> bool:
        """Return whether the actor has a permission."""
        return permission in self.permissions

    def refusal(
        self,
        permission: Permission,
        problems: Iterable[Problem] = (),
        *,
        project: str | None = None,
    ) -> ForbiddenError:
        """Return the error for a missing permission.

        `problems` are the fields of the request that need the permission. The error names the
        permission, these fields, and what the actor has. If the actor has the permission in
        other projects, the error names `project` and the least role.
        """
        found = tuple(problems)
        if project is not None and self.may(permission):
            return self.scope.refusal([permission], project, found)
        fields = ", ".join(each.pointer for each in found)
        held = ", ".join(each for each in Permission if self.may(each)) or "no permission"
        because = f", because of {fields}" if fields else ""
        whose = self.credential or f"the token {self.name!r}"
        return ForbiddenError(f"this needs {permission}{because}; {whose} has {held}", found)


def _system(name: str) -> Actor:
    every = frozenset(Permission)
    return Actor(name, permissions=every, token_allows=every, scope=SYSTEM_SCOPE)


SERVER = _system("server")
SCHEDULER = _system("scheduler")
TRAINER = _system("trainer")
RETENTION = _system("retention")
RECOVERY = _system("recovery")
SCRUBBING = _system("scrubbing")
EXPORTING = _system("exporting")
SYSTEM = (SERVER, SCHEDULER, TRAINER, RETENTION, RECOVERY, SCRUBBING, EXPORTING)
"""Parts of the system that change jobs."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Job, attempt, node and project that an event is about; each may be None."""

    job_id: str | None = None
    attempt: int | None = None
    """Number of the attempt."""
    node: str | None = None
    project: str | None = None
    """Project of an event that is about a project, or about a job that is deleted; otherwise the
    project is that of the job."""

    def on(self, node: str) -> Subject:
        """Return a copy of the subject with the given node."""
        return replace(self, node=node)

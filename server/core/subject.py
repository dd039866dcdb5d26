"""Actor and subject of an event: who caused it, and what it is about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from server.core.errors import ForbiddenError
from trainyard.base.problems import Problem
from trainyard.protocol.rest.access import Permission


@dataclass(frozen=True, slots=True)
class Actor:
    """Cause of a change: a person (named by the token), a node or a part of the system."""

    name: str
    token_id: str | None = None
    """Id of the token of a person; several tokens may have the same name."""
    is_admin: bool = False
    """Whether the token is the admin token."""
    token_hash: str | None = field(default=None, compare=False, repr=False)
    """Hash of the request's token. The id does not suffice, because a new admin token has the id of
    the former one.
    """
    permissions: frozenset[Permission] = field(default=frozenset(), compare=False, repr=False)
    """Permissions of the request's token; the parts of the system have all."""

    @property
    def identity(self) -> str:
        """Id of a person's token, or the name of a part of the system."""
        return self.token_id or self.name

    def may_act_for(self, token_id: str | None) -> bool:
        """Return whether the actor may act for the holder of the token with the id `token_id`."""
        return self.is_admin or self.made(token_id)

    def made(self, token_id: str | None) -> bool:
        """Return whether the actor holds the token with the id `token_id`; False for None."""
        return token_id is not None and token_id == self.token_id

    def may(self, permission: Permission) -> bool:
        """Return whether the actor has a permission."""
        return permission in self.permissions

    def refusal(self, permission: Permission, problems: Iterable[Problem] = ()) -> ForbiddenError:
        """Return the error for a missing permission.

        `problems` are the fields of the request that need the permission. The error names the
        permission, these fields, and what the actor has.
        """
        found = tuple(problems)
        fields = ", ".join(each.pointer for each in found)
        held = ", ".join(each for each in Permission if self.may(each)) or "no permission"
        because = f", because of {fields}" if fields else ""
        return ForbiddenError(
            f"this needs {permission}{because}; the token {self.name!r} has {held}", found
        )


def _system(name: str) -> Actor:
    return Actor(name, permissions=frozenset(Permission))


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
    """Job, attempt and node that an event is about; each may be None."""

    job_id: str | None = None
    attempt: int | None = None
    """Number of the attempt."""
    node: str | None = None

    def on(self, node: str) -> Subject:
        """Return a copy of the subject with the given node."""
        return replace(self, node=node)

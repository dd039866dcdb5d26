"""Actor and subject of an event: who caused it, and what it is about."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


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


SERVER = Actor("server")
SCHEDULER = Actor("scheduler")
TRAINER = Actor("trainer")
RETENTION = Actor("retention")
RECOVERY = Actor("recovery")
SCRUBBING = Actor("scrubbing")


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

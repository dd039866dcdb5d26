"""Actor and subject of an event."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Actor:
    """The cause of a change: a person (by the token's name), a node or a part of the system."""

    name: str
    token_id: str | None = None
    """Token that identifies a person; another token may have the same name."""
    is_admin: bool = False
    """Whether the token is the admin token."""
    token_hash: str | None = field(default=None, compare=False, repr=False)
    """Hash of the request's token; needed because the admin token keeps its id when replaced."""

    @property
    def identity(self) -> str:
        """The token of a person, or the name of a part of the system."""
        return self.token_id or self.name

    def may_act_for(self, token_id: str | None) -> bool:
        """Return whether the actor may act for the holder of a token."""
        return self.is_admin or self.made(token_id)

    def made(self, token_id: str | None) -> bool:
        """Return whether the actor holds a token; None is held by no person."""
        return token_id is not None and token_id == self.token_id


SERVER = Actor("server")
SCHEDULER = Actor("scheduler")
TRAINER = Actor("trainer")
RETENTION = Actor("retention")
RECOVERY = Actor("recovery")
SCRUBBING = Actor("scrubbing")


@dataclass(frozen=True, slots=True)
class Subject:
    """The job, attempt and node of an event; each may be None."""

    job_id: str | None = None
    attempt: int | None = None
    """Number of the attempt."""
    node: str | None = None

    def on(self, node: str) -> Subject:
        """Return the same subject, narrowed to one node."""
        return replace(self, node=node)

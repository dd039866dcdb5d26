"""Who caused an event, and what it is about."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Actor:
    """Who caused a change: a person by the name of the token, a node, or a part of the system."""

    name: str


SERVER = Actor("server")
SCHEDULER = Actor("scheduler")
TRAINER = Actor("trainer")
RETENTION = Actor("retention")
RECOVERY = Actor("recovery")
SCRUBBING = Actor("scrubbing")


@dataclass(frozen=True, slots=True)
class Subject:
    """The job, attempt and node that an event is about; None where it is about none."""

    job_id: str | None = None
    attempt: int | None = None
    """Number of the attempt."""
    node: str | None = None

    def on(self, node: str) -> Subject:
        """Return the same subject, narrowed to one node."""
        return replace(self, node=node)

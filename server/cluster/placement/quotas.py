"""Quotas of projects, and the reasons why jobs wait for a quota (docs/projects.md, 12-15)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from server.cluster.placement.demand import Demand


@dataclass(frozen=True)
class Quota:
    """Limits and current use of a project."""

    held: int = 0
    """Number of slots that the project's jobs hold."""
    max_slots: int | None = None
    """Maximum number of held slots; None if unlimited."""
    used_up: str | None = None
    """If the month's slot-hours are used up, the reason why no job starts; otherwise None."""

    @property
    def left(self) -> float:
        """Number of further slots: infinite without a limit, negative after a lowered limit."""
        return math.inf if self.max_slots is None else self.max_slots - self.held

    @property
    def is_exceeded(self) -> bool:
        """Whether the project's jobs hold too many slots or have used up their slot-hours."""
        return self.used_up is not None or self.left < 0

    def has_room(self, slots: int) -> bool:
        """Return whether the project's jobs may hold `slots` more slots."""
        return slots <= self.left


class Quotas:
    """The quotas of projects during one decision.

    A job that waits for slots counts as if it held them. A job that waits for its project's
    `max_slots` blocks the project's jobs behind it, unless it alone exceeds `max_slots`. Otherwise
    smaller jobs would overtake it forever.
    """

    def __init__(self, quotas: Mapping[str, Quota]) -> None:
        self._quotas = quotas
        self._held = Counter({project: quota.held for project, quota in quotas.items()})
        self._kept: Counter[str] = Counter()
        self._first: dict[str, str] = {}  # project -> first job that waits for its quota

    def refusal(self, project: str, name: str, demand: Demand) -> str | None:
        """Return why a job may not start within the quotas of its project, or None if it may.

        The first job that waits for `max_slots` blocks the later jobs of its project.
        """
        if self.allows(project, demand):
            return None
        quota, needs = self._quotas[project], demand.slots
        if quota.used_up is not None:
            return quota.used_up
        most = quota.max_slots
        assert most is not None, "a quota without a limit refuses nothing"
        if needs > most:
            return f"needs {needs}, and project {project} may hold {most} slots"
        held, kept = self._held[project], self._kept[project]
        holds = f"project {project} holds {held} of its {most} slots"
        if kept:
            holds += f", {kept} more are for its jobs ahead"
        if project in self._first:
            return f"{holds}; waits behind {self._first[project]}"
        self._first[project] = name
        return f"{holds}; needs {needs}"

    def allows(self, project: str, demand: Demand) -> bool:
        """Return whether a job may start within its project's quotas; change nothing."""
        quota = self._quotas.get(project, Quota())
        if quota.used_up is not None or quota.max_slots is None:
            return quota.used_up is None
        counted = self._held[project] + self._kept[project]
        return project not in self._first and counted + demand.slots <= quota.max_slots

    def hold(self, project: str, demand: Demand) -> None:
        """Count the slots of a job that starts."""
        self._held[project] += demand.slots

    def keep(self, project: str, demand: Demand) -> None:
        """Count the slots for which a job waits."""
        self._kept[project] += demand.slots

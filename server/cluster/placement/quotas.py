"""Quotas of projects and limits of their users, and the reasons why jobs wait for one.

See docs/projects.md, 12-15 and 17-22.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from server.cluster.placement.demand import QueuedJob


@dataclass(frozen=True)
class UserQuota:
    """Limits of a user in a project, and the use by the user's jobs in this project."""

    held: int = 0
    """Number of slots that the user's jobs hold."""
    running: int = 0
    """Number of the user's jobs that hold slots."""
    max_slots: int | None = None
    """Maximum number of held slots; None if unlimited."""
    max_running: int | None = None
    """Maximum number of jobs that hold slots; None if unlimited."""

    @property
    def left(self) -> float:
        """Number of further slots: infinite without a limit, negative after a lowered limit."""
        return _left(self.max_slots, self.held)

    @property
    def is_exceeded(self) -> bool:
        """Whether the user's jobs are above a limit."""
        return self.left < 0 or _left(self.max_running, self.running) < 0

    def has_room(self, slots: int, *, jobs: int = 1) -> bool:
        """Return whether `jobs` more jobs of the user may hold `slots` more slots together."""
        return slots <= self.left and jobs <= _left(self.max_running, self.running)

    def could_hold(self, slots: int) -> bool:
        """Return whether a job with `slots` slots is within the limits while no other job runs."""
        return slots <= _left(self.max_slots, 0) and self.max_running != 0


@dataclass(frozen=True)
class UserQuotas:
    """The limits of the users of one project."""

    known: Mapping[str, UserQuota] = field(default_factory=dict)
    """By id, the users who have own limits, or whose jobs hold slots."""
    default: UserQuota = UserQuota()
    """Limits of each other user."""

    def of(self, user_id: str) -> UserQuota:
        """Return limits and use of a user."""
        return self.known.get(user_id, self.default)


@dataclass(frozen=True)
class Quota:
    """Limits and current use of a project."""

    held: int = 0
    """Number of slots that the project's jobs hold."""
    max_slots: int | None = None
    """Maximum number of held slots; None if unlimited."""
    used_up: str | None = None
    """If the month's slot-hours are used up, the reason why no job starts; otherwise None."""
    users: UserQuotas | None = None
    """Limits of the project's users; None if no user has a limit."""

    @property
    def left(self) -> float:
        """Number of further slots: infinite without a limit, negative after a lowered limit."""
        return _left(self.max_slots, self.held)

    @property
    def is_exceeded(self) -> bool:
        """Whether the project's jobs hold too many slots or have used up their slot-hours."""
        return self.used_up is not None or self.left < 0

    def has_room(self, slots: int) -> bool:
        """Return whether the project's jobs may hold `slots` more slots."""
        return slots <= self.left

    def could_hold(self, slots: int) -> bool:
        """Return whether a job with `slots` slots is within `max_slots` while no other job runs."""
        return slots <= _left(self.max_slots, 0)

    def with_more(self, user_id: str, slots: int) -> Quota:
        """Return the quota after a running job of a user has taken more slots."""
        users = self.users
        if users is not None:
            user = users.of(user_id)
            known = {**users.known, user_id: replace(user, held=user.held + slots)}
            users = replace(users, known=known)
        return replace(self, held=self.held + slots, users=users)

    def of_user(self, user_id: str) -> UserQuota:
        """Return limits and use of a user of the project."""
        return UserQuota() if self.users is None else self.users.of(user_id)


def is_exceeded(quotas: Mapping[str, Quota], project: str, owner_id: str) -> bool:
    """Return whether a project, or a user in it, is above a limit, so that no job would start."""
    quota = quotas.get(project, Quota())
    return quota.is_exceeded or quota.of_user(owner_id).is_exceeded


@dataclass
class _Account:
    """The use of the limits of a project, or of a user, during one decision.

    A job that waits for slots counts as if it held them. A job that waits for a limit blocks the
    later jobs of the account, unless it alone exceeds the limit. Otherwise smaller jobs would
    overtake it forever.
    """

    project: str
    is_of_user: bool
    held: int = 0
    max_slots: int | None = None
    running: int = 0
    max_running: int | None = None
    kept: int = 0
    """Number of slots for which jobs ahead wait."""
    kept_jobs: int = 0
    first: str | None = None
    """Name of the first job that waits for a limit of the account."""

    def could_hold(self, slots: int) -> bool:
        return slots <= _left(self.max_slots, 0)

    def allows(self, slots: int) -> bool:
        return (
            self.first is None
            and slots <= _left(self.max_slots, self.held + self.kept)
            and _left(self.max_running, self.running + self.kept_jobs) >= 1
        )

    def hold(self, slots: int) -> None:
        self.held += slots
        self.running += 1

    def keep(self, slots: int) -> None:
        self.kept += slots
        self.kept_jobs += 1

    def why_never(self, needs: int) -> str:
        if self.is_of_user:
            most = f"its owner may hold {self.max_slots} slots in project {self.project}"
        else:
            most = f"project {self.project} may hold {self.max_slots} slots"
        return f"needs {needs}, and {most}"

    def refuse(self, needs: int, name: str) -> str:
        """Return why a job waits; the first such job blocks the later jobs of the account."""
        if _left(self.max_running, self.running + self.kept_jobs) < 1:
            holds, needed = self._runs(), ""
        else:
            holds, needed = self._holds(), f"; needs {needs}"
        if self.first is not None:
            return f"{holds}; waits behind {self.first}"
        self.first = name
        return holds + needed

    def _holds(self) -> str:
        whose, of, ahead = f"project {self.project}", "of its", "its jobs ahead"
        if self.is_of_user:
            whose, of, ahead = "its owner", "of", "jobs ahead"
        holds = f"{whose} holds {self.held} {of} {self.max_slots} slots"
        if self.is_of_user:
            holds += f" in project {self.project}"
        return holds + (f", {self.kept} more are for {ahead}" if self.kept else "")

    def _runs(self) -> str:
        runs = f"its owner runs {self.running} of {self.max_running} jobs in project {self.project}"
        are = "is" if self.kept_jobs == 1 else "are"
        return runs + (f", {self.kept_jobs} more {are} ahead" if self.kept_jobs else "")


class Quotas:
    """The quotas of projects and the limits of their users during one decision."""

    def __init__(self, quotas: Mapping[str, Quota]) -> None:
        self._quotas = quotas
        self._of_projects: dict[str, _Account] = {}
        self._of_users: dict[tuple[str, str], _Account] = {}

    def refusal(self, job: QueuedJob) -> str | None:
        """Return why a job may not start within the limits of its project and owner, or None.

        The first job that waits for a limit of its project or owner blocks their later jobs.
        """
        quota = self._quotas.get(job.project)
        if quota is None:
            return None
        if quota.used_up is not None:
            return quota.used_up
        accounts, needs = [*self._accounts(job)], job.demand.slots
        for account in accounts:
            if not account.could_hold(needs):
                return account.why_never(needs)
        for account in accounts:
            if not account.allows(needs):
                return account.refuse(needs, job.name)
        return None

    def allows(self, job: QueuedJob) -> bool:
        """Return whether a job may start within the limits; change nothing."""
        quota = self._quotas.get(job.project, Quota())
        return quota.used_up is None and all(
            account.allows(job.demand.slots) for account in self._accounts(job)
        )

    def hold(self, job: QueuedJob) -> None:
        """Count the slots of a job that starts."""
        for account in self._accounts(job):
            account.hold(job.demand.slots)

    def keep(self, job: QueuedJob) -> None:
        """Count the slots for which a job waits."""
        for account in self._accounts(job):
            account.keep(job.demand.slots)

    def _accounts(self, job: QueuedJob) -> Iterator[_Account]:
        """Yield the accounts with the limits of a job.

        The account of the owner comes first, so that a job that waits for its owner's limit does
        not block the jobs of other users.
        """
        project, owner = job.project, job.owner_id
        quota = self._quotas.get(project)
        if quota is None:
            return
        if quota.users is not None:
            if (project, owner) not in self._of_users:
                user = quota.users.of(owner)
                self._of_users[project, owner] = _Account(
                    project,
                    is_of_user=True,
                    held=user.held,
                    max_slots=user.max_slots,
                    running=user.running,
                    max_running=user.max_running,
                )
            yield self._of_users[project, owner]
        if project not in self._of_projects:
            self._of_projects[project] = _Account(
                project, is_of_user=False, held=quota.held, max_slots=quota.max_slots
            )
        yield self._of_projects[project]


def _left(most: int | None, used: int) -> float:
    return math.inf if most is None else most - used

"""Types of placement: demands of jobs and operations, offers of nodes, holdings of attempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Literal

from server.core.expected_time import expected_time
from trainyard.base.labels import BLOCK, FABRIC, RACK
from trainyard.spec.job import DEFAULT_PROJECT

Device = Literal["auto", "cpu", "cuda"]

LEAVES_WITHIN = timedelta(seconds=60)
"""Expected time from the order to leave to the end of an attempt, including its save."""
OVERDUE_AFTER = timedelta(minutes=5)
"""Time after which the end of an attempt that should leave counts as unknown, because its save may
hang. The time starts at the order to leave, or when the end was first expected within
`LEAVES_WITHIN`; in the latter case, it is `LEAVES_WITHIN` for an attempt with `overtook_at`."""
NO_ACCOUNT = ""
"""Account of an operation that runs under a user without an account on every node."""
CAUTION = 2
"""Factor on the expected duration of a job that is backfilled on this estimate alone."""


def leave_time(seconds: float | None) -> timedelta:
    """Return the time that an attempt may take to leave after the order.

    `seconds` is the time that the spec gives the ranks after the signal; None if the spec sets no
    such time.
    """
    return max(LEAVES_WITHIN, expected_time(seconds or 0.0))


@dataclass(frozen=True)
class Demand:
    """Needs of a queued job or operation; all jobs of a group have equal demands."""

    world_size: int
    """Number of slots; 0 for an operation."""
    nodes: int | None = None
    """Exact number of nodes, each with the same number of slots; None for as few nodes as
    possible."""
    device: Device = "auto"
    roots: tuple[str, ...] = ("checkpoints",)
    """Storage roots that every node must have, each with the same UUID on all nodes."""
    storage: tuple[str, str] | None = None
    """Name and UUID of the root with the checkpoint from which the job or operation starts."""
    units: tuple[int, ...] = ()
    """Preferred units: the number of slots of each share is a multiple of the first unit with which
    the demand fits. Shares have any number of slots if the demand fits with none of the units.
    """
    node_selector: tuple[tuple[str, str], ...] = ()
    """Labels that each node must have, as pairs of key and value."""
    exclude_nodes: tuple[str, ...] = ()
    """Names of nodes on which the job never runs, sorted."""
    spare_nodes: int = 0
    """Number of spare nodes to reserve, each with as many slots as the job has on one of its
    `nodes`."""
    account: str | None = None
    """Unix account of the job's owner; None without one. A build runs under `NO_ACCOUNT`."""

    @property
    def slots(self) -> int:
        """Number of slots that the job holds once placed, including slots on spare nodes."""
        if self.nodes is None:
            return self.world_size
        return self.world_size + self.spare_nodes * (self.world_size // self.nodes)


@dataclass(frozen=True)
class Offer:
    """A node that is online and takes new work."""

    node: str
    device: Literal["cpu", "cuda"]
    slots: int
    """Number of slots, except withheld ones."""
    free: tuple[int, ...]
    """Indices of the free slots."""
    roots: Mapping[str, str]
    """UUIDs of the node's storage roots, by name."""
    holders: Mapping[str, int] = field(default_factory=dict)
    """Number of held slots, by name of the job that holds them."""
    polls: bool = False
    """Whether the node's worker fetches messages by long polls instead of from the broker."""
    partitions: tuple[int, ...] = ()
    """Indices of slots that are parts of a GPU; a rank on such a part cannot reach other ranks."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the node; a missing `fabric`, `block` or `rack` counts as an empty value."""
    withheld: Mapping[int, str] = field(default_factory=dict)
    """Reasons for withholding slots, by index of the slot."""
    device_name: str = ""
    """Name of the node's hardware."""
    accounts: Mapping[str, int | str] | None = None
    """User ids of Unix accounts on the node, by account, or why the node cannot run jobs under the
    account; no entry before the node has looked the account up. None if the node needs no accounts.
    """

    @cached_property
    def indices(self) -> frozenset[int]:
        """Indices of all slots, except withheld ones."""
        return frozenset(range(self.slots + len(self.withheld))) - self.withheld.keys()

    def why_not_as(self, account: str | None) -> str | None:
        """Return why the node cannot run jobs under a Unix account; None if it can."""
        if self.accounts is None or account == NO_ACCOUNT:
            return None
        if account is None:
            return "has no Unix account"
        found = self.accounts.get(account, "is not looked up yet")
        return found if isinstance(found, str) else None

    @cached_property
    def by_free(self) -> tuple[int, str]:
        """Sort key of nodes: number of free slots, then the name."""
        return len(self.free), self.node

    @cached_property
    def fabric(self) -> str:
        """Network of the node; all nodes of an attempt are in the same network."""
        return self.labels.get(FABRIC, "")

    @cached_property
    def place(self) -> tuple[str, str]:
        """Block and rack of the node."""
        return self.labels.get(BLOCK, ""), self.labels.get(RACK, "")

    def without_partitions(self) -> Offer:
        """Return the offer without parts of GPUs, for a demand of several slots."""
        if not self.partitions:
            return self
        return replace(
            self,
            slots=self.slots - len(self.partitions),
            free=tuple(slot for slot in self.free if slot not in self.partitions),
            partitions=(),
        )


@dataclass(frozen=True)
class Holding:
    """The slots that an attempt holds, and the properties of the attempt that placement needs."""

    shares: Mapping[str, tuple[int, ...]]
    """Indices of the held slots, by node."""
    ends_at: datetime | None
    """Expected end of the attempt. None if unknown, which counts as never."""
    attempt_id: str = ""
    job_id: str = ""
    priority: int = 0
    """Priority of the attempt's job."""
    first_step_at: datetime | None = None
    """Time of the attempt's first step; None before that step, or if preemption is impossible."""
    overtook_at: datetime | None = None
    """Time of placement if the attempt was backfilled on an estimate alone; otherwise None. Such an
    attempt gives way to jobs ahead of its own job."""
    queued_at: datetime | None = None
    """Time at which the attempt's job was queued for this attempt."""
    ends_by: datetime | None = None
    """Latest end of the attempt. It follows from the bound of the attempt's run time, or from an
    order to leave; None if the attempt has neither.
    """
    project: str = DEFAULT_PROJECT
    """Project of the attempt's job."""
    tag: float = 0.0
    """Tag that the job would have if it still waited; set only together with `overtook_at`."""

    @property
    def slots(self) -> int:
        """Number of the attempt's slots on all nodes."""
        return sum(map(len, self.shares.values()))

    def gives_way_to(self, job: QueuedJob) -> bool:
        """Return whether the attempt must give way to `job`.

        The attempt must give way if it overtook `job` on an estimate alone, and its own job would
        come after `job` in the queue. So when the attempt has left, its own job waits behind `job`
        and does not take the slots back.
        """
        if not self.overtook(job.queued_at):
            return False
        if job.priority != self.priority:
            return job.priority > self.priority
        rank, own = (job.queued_at, job.id), (self.queued_at or self.overtook_at, self.job_id)
        # Tags cannot be compared here, because the waiting job's tag counts this attempt's slots.
        if job.project == self.project:
            return rank < own
        return (job.tag, *rank) < (self.tag, *own)

    def overtook(self, queued_at: datetime | None) -> bool:
        """Return whether the attempt overtook, on an estimate, a job queued at `queued_at`."""
        at = self.overtook_at
        return at is not None and queued_at is not None and queued_at <= at

    def usable_by(self, demand: Demand, offers: Mapping[str, Offer]) -> dict[str, int]:
        """Return by node the number of slots that the end of the attempt would free for a demand.

        `offers` has the nodes by name; their slots on parts of GPUs are included. The end frees
        fewer slots than the attempt holds if a node no longer offers all of them.
        """
        found = {}
        for node, slots in self.shares.items():
            if (offer := offers.get(node)) is None:
                continue
            usable = offer.indices.intersection(slots)
            if demand.world_size > 1 and offer.partitions:
                usable = usable.difference(offer.partitions)
            if usable:
                found[node] = len(usable)
        return found


@dataclass(frozen=True)
class QueuedJob:
    """A job in the queue."""

    id: str
    name: str
    demand: Demand
    lasts: timedelta | None = None
    """Expected time from placement to end of the job's attempt; None if unknown."""
    lasts_on: str | None = None
    """Kind of slot for which `lasts` is valid; None for any kind."""
    lasts_on_name: str | None = None
    """Name of the hardware for which `lasts` is valid; None for any hardware."""
    bound: timedelta | None = None
    """Maximum run time of one attempt, after which the attempt leaves; None without a bound."""
    leaves_within: timedelta = LEAVES_WITHIN
    """Time that an attempt of the job may take to leave after an order to leave."""
    priority: int = 0
    project: str = DEFAULT_PROJECT
    """Project with the quotas that limit the job."""
    owner_id: str = ""
    """User with the limits in the project that limit the job."""
    queued_at: datetime | None = None
    """Time since which the job waits."""
    tag: float = 0.0
    """Number of slots that the job's project holds at the job's turn, divided by the project's
    weight."""
    preemptible: bool = True
    """Whether another job may preempt an attempt of the job."""

    def lasts_with(self, offer: Offer) -> timedelta | None:
        """Return the expected duration on a node, or None if it is unknown."""
        same_device = self.lasts_on in {None, offer.device}
        return (
            self.lasts if same_device and self.lasts_on_name in {None, offer.device_name} else None
        )

    def ends_with(self, offer: Offer) -> timedelta | None:
        """Return the expected time from the placement on a node until the attempt leaves.

        The time is at most the job's bound; None if neither duration nor bound is known.
        """
        known = [each for each in (self.lasts_with(offer), self.bound) if each is not None]
        return min(known, default=None)

"""Values of placement: demands of jobs and operations, offers of nodes, holdings of attempts."""

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
"""Time after which an attempt that has not left counts as having no known end, as its save may
hang: from the order to leave, or from when its end was first expected within `LEAVES_WITHIN`."""
CAUTION = 2
"""Factor on the expected duration of a job that is backfilled on that estimate alone."""


def leave_time(seconds: float | None) -> timedelta:
    """Return the time that an attempt may take to leave after the order.

    Args:
        seconds: time of its ranks after the signal; None if the spec does not set it.
    """
    return max(LEAVES_WITHIN, expected_time(seconds or 0.0))


@dataclass(frozen=True)
class Demand:
    """The needs of a queued job or operation; equal for all jobs of a group."""

    world_size: int
    """Slots; 0 for an operation."""
    nodes: int | None = None
    """Exact number of nodes, with equal shares; None for the fewest nodes that hold it."""
    device: Device = "auto"
    roots: tuple[str, ...] = ("checkpoints",)
    """Names of the storage roots that every node must have, with the same UUID on each."""
    storage: tuple[str, str] | None = None
    """Name and UUID of the root with the checkpoint from which it starts."""
    units: tuple[int, ...] = ()
    """Preferred units: each share is a multiple of the first that fits on the nodes, else of 1."""
    node_selector: tuple[tuple[str, str], ...] = ()
    """Labels that each node must have, by key."""
    exclude_nodes: tuple[str, ...] = ()
    """Names of nodes that it never runs on, sorted."""
    spare_nodes: int = 0
    """Number of further nodes to reserve, each with a share as on one of its `nodes`."""

    @property
    def slots(self) -> int:
        """Slots that it holds once placed, including those on spare nodes."""
        if self.nodes is None:
            return self.world_size
        return self.world_size + self.spare_nodes * (self.world_size // self.nodes)


@dataclass(frozen=True)
class Offer:
    """A node that is online and takes new work."""

    node: str
    device: Literal["cpu", "cuda"]
    slots: int
    """Number of slots, without withheld ones."""
    free: tuple[int, ...]
    """Indices of the free slots."""
    roots: Mapping[str, str]
    """UUIDs of its storage roots, by name."""
    holders: Mapping[str, int] = field(default_factory=dict)
    """Number of held slots, by name of the job."""
    polls: bool = False
    """Whether its worker fetches messages by long polls instead of from the broker."""
    partitions: tuple[int, ...] = ()
    """Indices of slots that are parts of a GPU: a rank there cannot reach other ranks."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the node; a missing `fabric`, `block` or `rack` counts as an empty value."""
    withheld: Mapping[int, str] = field(default_factory=dict)
    """Reasons of the withheld slots, by index."""
    device_name: str = ""
    """Name of its hardware."""

    @cached_property
    def indices(self) -> frozenset[int]:
        """Indices of all slots except withheld ones."""
        return frozenset(range(self.slots + len(self.withheld))) - self.withheld.keys()

    @cached_property
    def by_free(self) -> tuple[int, str]:
        """Sort key of nodes: number of free slots, then the name."""
        return len(self.free), self.node

    @cached_property
    def fabric(self) -> str:
        """The network that its attempts never leave."""
        return self.labels.get(FABRIC, "")

    @cached_property
    def place(self) -> tuple[str, str]:
        """Block and rack."""
        return self.labels.get(BLOCK, ""), self.labels.get(RACK, "")

    def without_partitions(self) -> Offer:
        """Return the node as a demand of several slots may use it."""
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
    """Indices of its slots, by node."""
    ends_at: datetime | None
    """Expected end of the attempt; None if unknown, as if it never ended."""
    attempt_id: str = ""
    job_id: str = ""
    priority: int = 0
    """Priority of its job."""
    first_step_at: datetime | None = None
    """Start of its training; None before that, and if it cannot be preempted."""
    overtook_at: datetime | None = None
    """Time of its placement if it was backfilled on an estimate alone, so that it gives way to jobs
    ahead of its own; None for others."""
    queued_at: datetime | None = None
    """Since when its job waited for it."""
    ends_by: datetime | None = None
    """End without an estimate: its bound, or the end after an order to leave; None without any."""
    project: str = DEFAULT_PROJECT
    """Project of its job."""
    tag: float = 0.0
    """For an attempt that was backfilled on an estimate alone: the tag that its job would have if
    it were still waiting."""

    @property
    def slots(self) -> int:
        """Number of its slots on all nodes."""
        return sum(map(len, self.shares.values()))

    def gives_way_to(self, job: QueuedJob) -> bool:
        """Return whether it overtook the job on an estimate alone, and the job is ahead of its own.

        Its own job is compared as if it were still waiting. After it has left, its job waits behind
        the other one, so it does not take the slots back.
        """
        if not self.overtook(job.queued_at):
            return False
        if job.priority != self.priority:
            return job.priority > self.priority
        rank, own = (job.queued_at, job.id), (self.queued_at or self.overtook_at, self.job_id)
        if job.project == self.project:  # tags differ: the waiting job's counts the slots held here
            return rank < own
        return (job.tag, *rank) < (self.tag, *own)

    def overtook(self, queued_at: datetime | None) -> bool:
        """Return whether it was backfilled on an estimate after a job was queued at that time."""
        return (
            self.overtook_at is not None
            and queued_at is not None
            and (queued_at <= self.overtook_at)
        )

    def usable_by(self, demand: Demand, offers: Mapping[str, Offer]) -> dict[str, int]:
        """Return the number of slots that a demand could use after the attempt's end, by node.

        Args:
            demand: the waiting demand.
            offers: the nodes by name, with parts of GPUs; a node may offer fewer slots now than at
                the attempt's placement.
        """
        whole = demand.world_size > 1
        found = {}
        for node, slots in self.shares.items():
            offer = offers.get(node)
            if offer is None:
                continue
            usable = offer.indices.intersection(slots)
            if whole and offer.partitions:
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
    """Expected time from its placement to its end; None if unknown."""
    lasts_on: str | None = None
    """Kind of slot for which `lasts` holds; None for any."""
    lasts_on_name: str | None = None
    """Name of the hardware for which `lasts` holds; None for any."""
    bound: timedelta | None = None
    """Longest run time of its attempt, at which it leaves; None without a bound."""
    leaves_within: timedelta = LEAVES_WITHIN
    """Time that its attempt may take to leave after the order."""
    priority: int = 0
    project: str = DEFAULT_PROJECT
    """Project with the quotas for which it counts."""
    queued_at: datetime | None = None
    """Since when it waits."""
    tag: float = 0.0
    """Slots that its project holds in the job's turn, divided by the project's weight."""
    preemptible: bool = True
    """Whether another job may preempt it."""

    def lasts_with(self, offer: Offer) -> timedelta | None:
        """Return the expected duration on a node, or None if unknown."""
        is_known = self.lasts_on in {None, offer.device} and (
            self.lasts_on_name in {None, offer.device_name}
        )
        return self.lasts if is_known else None

    def ends_with(self, offer: Offer) -> timedelta | None:
        """Return the time until its attempt on a node is expected to leave, or None if unknown.

        The bound limits it.
        """
        known = [each for each in (self.lasts_with(offer), self.bound) if each is not None]
        return min(known, default=None)

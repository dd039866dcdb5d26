"""What a job or an operation needs, what a node offers, and what attempts hold."""

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
"""Expected time until an attempt that is ordered to leave has done so, its save included."""
OVERDUE_AFTER = timedelta(minutes=5)
"""Time since that order, or since an end was first expected so soon, after which no end of the
attempt is expected: its save may hang."""
CAUTION = 2
"""So many times the expected duration fit where a job is backfilled on that estimate alone."""


def leave_time(seconds: float | None) -> timedelta:
    """Return the time that an attempt may take to leave once it is ordered to.

    Args:
        seconds: those that its ranks have after the signal, where the spec gives them.
    """
    return max(LEAVES_WITHIN, expected_time(seconds or 0.0))


@dataclass(frozen=True)
class Demand:
    """What a queued job or operation needs: equal for all jobs of a group."""

    world_size: int
    """Slots; 0 for an operation."""
    nodes: int | None = None
    """Spread evenly over exactly so many nodes; when absent over the fewest that hold it."""
    device: Device = "auto"
    roots: tuple[str, ...] = ("checkpoints",)
    """Names of the storage roots that every node must see, the same on each."""
    storage: tuple[str, str] | None = None
    """Root that holds what it goes on from: its name and UUID."""
    units: tuple[int, ...] = ()
    """Each share is a multiple of the first of these with which the nodes hold it, else of 1."""
    node_selector: tuple[tuple[str, str], ...] = ()
    """Labels that each node must have, by key."""
    exclude_nodes: tuple[str, ...] = ()
    """Names of nodes that it never runs on, in order."""
    spare_nodes: int = 0
    """Further nodes that are reserved with the share of each of its `nodes`."""

    @property
    def slots(self) -> int:
        """Slots that it holds once it is placed, those on spare nodes included."""
        if self.nodes is None:
            return self.world_size
        return self.world_size + self.spare_nodes * (self.world_size // self.nodes)


@dataclass(frozen=True)
class Offer:
    """A node that is online and takes new work."""

    node: str
    device: Literal["cpu", "cuda"]
    slots: int
    """Slots that it has, without those that are withheld."""
    free: tuple[int, ...]
    """Indices of the slots that are free."""
    roots: Mapping[str, str]
    """UUID of each storage root that it sees, by name."""
    holders: Mapping[str, int] = field(default_factory=dict)
    """Slots that are held, by name of the job."""
    polls: bool = False
    """Whether its worker fetches messages by long polls, and gets none through the broker."""
    partitions: tuple[int, ...] = ()
    """Slots that are parts of a GPU: a rank there reaches no other rank."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the node; one without `fabric`, `block` or `rack` has the empty value."""
    withheld: Mapping[int, str] = field(default_factory=dict)
    """Why further slots are withheld, by their index."""
    device_name: str = ""
    """Name of its hardware."""

    @cached_property
    def indices(self) -> frozenset[int]:
        """Indices of the slots that are not withheld."""
        return frozenset(range(self.slots + len(self.withheld))) - self.withheld.keys()

    @cached_property
    def by_free(self) -> tuple[int, str]:
        """What nodes are sorted by: free slots, then the name."""
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
        """Return what it offers to a demand of several slots."""
        return replace(
            self,
            slots=self.slots - len(self.partitions),
            free=tuple(slot for slot in self.free if slot not in self.partitions),
            partitions=(),
        )


@dataclass(frozen=True)
class Holding:
    """What an attempt holds."""

    shares: Mapping[str, tuple[int, ...]]
    """Indices of its slots on each node."""
    ends_at: datetime | None
    """Expected end of the attempt; None where its pace is not known, as if it never ended."""
    attempt_id: str = ""
    job_id: str = ""
    priority: int = 0
    """Of its job."""
    first_step_at: datetime | None = None
    """When it began to train; None before, and where no waiting job may make it leave."""
    overtook_at: datetime | None = None
    """When it was placed, of an attempt that was backfilled on an estimate alone, so that it leaves
    for the jobs that are ahead of its own; None for others."""
    queued_at: datetime | None = None
    """Since when its job waited for it."""
    ends_by: datetime | None = None
    """End that rests on no estimate: its bound, or that after an order to leave; None without."""
    project: str = DEFAULT_PROJECT
    """Of its job."""
    tag: float = 0.0
    """Of an attempt that was backfilled on an estimate alone, the tag of its job if it were still
    waiting."""

    @property
    def slots(self) -> int:
        """Slots that it holds on all its nodes."""
        return sum(map(len, self.shares.values()))

    def gives_way_to(self, job: QueuedJob) -> bool:
        """Return whether it overtook, on an estimate alone, a job that is ahead of its own.

        Its own job is compared as if it were still waiting. Once it has left, it waits further
        back, so it does not take the slots back.
        """
        if not self.overtook(job.queued_at):
            return False
        if job.priority != self.priority:
            return job.priority > self.priority
        rank, own = (job.queued_at, job.id), (self.queued_at or self.overtook_at, self.job_id)
        if job.project == self.project:  # the tag of the job that waits counts the slots held here
            return rank < own
        return (job.tag, *rank) < (self.tag, *own)

    def overtook(self, queued_at: datetime | None) -> bool:
        """Return whether a job waited since a time when this one was backfilled on an estimate."""
        return (
            self.overtook_at is not None
            and queued_at is not None
            and (queued_at <= self.overtook_at)
        )

    def usable_by(self, demand: Demand, offers: Mapping[str, Offer]) -> dict[str, int]:
        """Return how many slots of each node a demand could use once the attempt has ended.

        Args:
            demand: what waits.
            offers: the nodes by name, parts of GPUs included; a node may offer fewer slots than
                when the attempt was placed.
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
    """A job of the queue."""

    id: str
    name: str
    demand: Demand
    lasts: timedelta | None = None
    """Expected time from its placement to its end; None where that is not known."""
    lasts_on: str | None = None
    """Kind of slot on which it lasts so long; None for any."""
    lasts_on_name: str | None = None
    """Name of the hardware on which it does; None for any."""
    bound: timedelta | None = None
    """Longest run time of its attempt, which leaves then; None for a job without a bound."""
    leaves_within: timedelta = LEAVES_WITHIN
    """Time that its attempt may take to leave once it is ordered to."""
    priority: int = 0
    project: str = DEFAULT_PROJECT
    """Project whose quotas it counts towards."""
    queued_at: datetime | None = None
    """Since when it waits."""
    tag: float = 0.0
    """Slots for its weight that its project holds in the job's turn."""
    preemptible: bool = True
    """Whether another job may make it leave."""

    def lasts_with(self, offer: Offer) -> timedelta | None:
        """Return how long it lasts on a node; None where that is not known."""
        is_known = self.lasts_on in {None, offer.device} and (
            self.lasts_on_name in {None, offer.device_name}
        )
        return self.lasts if is_known else None

    def ends_with(self, offer: Offer) -> timedelta | None:
        """Return when its attempt on a node is expected to have left; None where it is not known.

        That is at its bound where it is expected to last longer.
        """
        known = [each for each in (self.lasts_with(offer), self.bound) if each is not None]
        return min(known, default=None)

"""Capacity: the free slots of the nodes, and where one demand fits on them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Literal, NamedTuple

from sqlalchemy import Connection, select

from server.database.tables import attempt_nodes, attempts, jobs, nodes
from trainyard.protocol.attempt import NodeAllocation
from trainyard.protocol.states import AttemptNodeState
from trainyard.protocol.worker_messages import PROTOCOL

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Offer:
    """A node that is online and takes new work."""

    node: str
    device: Literal["cpu", "cuda"]
    slots: int
    free: tuple[int, ...]
    """Indices of the slots that are free."""
    roots: Mapping[str, str]
    """UUID of each storage root that it sees, by name."""
    holders: Mapping[str, int] = field(default_factory=dict)
    """Slots that are held, by name of the job."""
    protocol: int = PROTOCOL
    """Protocol of its worker."""
    partitions: tuple[int, ...] = ()
    """Slots that are parts of a GPU: a rank there reaches no other rank."""

    def without_partitions(self) -> Offer:
        """Return what it offers to a demand of several slots."""
        return replace(
            self,
            slots=self.slots - len(self.partitions),
            free=tuple(slot for slot in self.free if slot not in self.partitions),
            partitions=(),
        )


class NodeShare(NamedTuple):
    """Part of a demand on one node."""

    offer: Offer
    """The node."""
    slots: int
    """Number of its slots."""


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
    new_fields: tuple[str, ...] = ()
    """Fields of its spec or task that a worker of an older protocol cannot read."""
    units: tuple[int, ...] = ()
    """Each share is a multiple of the first of these with which the nodes hold it, else of 1."""


def read_offers(connection: Connection, *, without_job: str | None = None) -> list[Offer]:
    """Return the nodes that are online and not draining, with the slots that are free on them.

    Args:
        connection: a transaction.
        without_job: a job whose slots count as free, as they will when it is resized.
    """
    holders: dict[str, Counter[str]] = {}
    taken: dict[str, set[int]] = {}
    holdings = connection.execute(
        select(attempt_nodes.c.node, attempt_nodes.c.slots, jobs.c.id, jobs.c.name)
        .join(attempts, attempts.c.id == attempt_nodes.c.attempt_id)
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .where(attempt_nodes.c.state != AttemptNodeState.ENDED)
    )
    for node, slots, job_id, name in holdings:
        if job_id != without_job:
            holders.setdefault(node, Counter())[name] += len(slots)
            taken.setdefault(node, set()).update(slots)
    node = nodes.c
    columns = (node.name, node.device, node.slots, node.roots, node.protocol, node.partitions)
    rows = connection.execute(
        select(*columns).where(
            nodes.c.offline_since.is_(None), nodes.c.drain.is_(None), nodes.c.notice.is_(None)
        )
    )
    return [
        Offer(
            node=row.name,
            device=row.device,
            slots=row.slots,
            free=tuple(s for s in range(row.slots) if s not in taken.get(row.name, ())),
            roots=row.roots,
            holders=holders.get(row.name, {}),
            protocol=row.protocol,
            partitions=tuple(row.partitions),
        )
        for row in rows
    ]


def fits(demand: Demand, offers: Sequence[Offer]) -> bool:
    """Return whether a demand could start at once, were it the only one that waits."""
    spanned = groups(demand, offers)
    units = [unit_on(demand, group) for group in spanned]
    return choose(demand, spanned, units=units) is not None


def eligible_for(demand: Demand, offers: Sequence[Offer]) -> list[Offer]:
    """Return the nodes that could run a demand, if their slots were free and no part of a GPU."""
    return [
        offer
        for offer in offers
        if offer.slots > 0
        and demand.device in {"auto", offer.device}
        and all(root in offer.roots for root in demand.roots)
        and (demand.storage is None or offer.roots.get(demand.storage[0]) == demand.storage[1])
        and (offer.protocol == PROTOCOL or not demand.new_fields)
    ]


def groups(demand: Demand, offers: Sequence[Offer]) -> list[list[Offer]]:
    """Return the sets of nodes that one attempt may span: one kind of slot, the same roots."""
    eligible = eligible_for(demand, offers)
    if demand.device == "auto" and any(offer.device == "cuda" for offer in eligible):
        eligible = [offer for offer in eligible if offer.device == "cuda"]
    if demand.world_size > 1:  # after the choice of GPUs: where all are divided, the demand waits
        whole = (o.without_partitions() if o.partitions else o for o in eligible)
        eligible = [offer for offer in whole if offer.slots > 0]
    groups: dict[tuple[str, ...], list[Offer]] = {}
    for offer in eligible:
        key = (offer.device, *(offer.roots[root] for root in demand.roots))
        groups.setdefault(key, []).append(offer)
    return [groups[key] for key in sorted(groups)]


def unit_on(demand: Demand, group: Sequence[Offer]) -> int:
    """Return the number of slots of which each share on these nodes is a multiple.

    Held slots count too: ranks of one unit wait for a node that holds them. Where the number of
    nodes is given, so are the shares.
    """
    units = demand.units if demand.nodes is None else ()
    return next((unit for unit in units if could_hold(demand, group, unit=unit)), 1)


def could_hold(demand: Demand, group: Sequence[Offer], *, unit: int) -> bool:
    """Return whether the nodes could hold a demand, if their slots were free."""
    return spread(demand, group, unit=unit, free=lambda offer: offer.slots) is not None


def choose(
    demand: Demand, groups: Sequence[Sequence[Offer]], *, units: Sequence[int]
) -> tuple[NodeAllocation, ...] | None:
    """Return the allocation on the fewest nodes, those with least to spare; None when none fits.

    Args:
        demand: what is placed, of one slot or more.
        groups: sets of nodes that one attempt may span.
        units: for each group the number of slots of which each share is a multiple.
    """
    spreads = [
        spread(demand, group, unit=unit, free=lambda offer: len(offer.free))
        for group, unit in zip(groups, units, strict=True)
    ]
    fitting = [shares for shares in spreads if shares is not None]
    if not fitting:
        return None
    best = min(fitting, key=lambda shares: (len(shares), sum(len(s.offer.free) for s in shares)))
    return tuple(
        NodeAllocation(node=offer.node, node_rank=rank, slots=offer.free[:size])
        for rank, (offer, size) in enumerate(best)
    )


def spread(
    demand: Demand, group: Sequence[Offer], *, unit: int, free: Callable[[Offer], int]
) -> list[NodeShare] | None:
    """Return the shares on the fewest nodes that hold the demand, the larger shares first.

    The shares are equal where so many nodes allow it. Else the larger nodes are filled, and the
    last one holds the rest. Of several sets of nodes it is one with little to spare: the least
    for equal shares.

    Args:
        demand: what is placed, of one slot or more.
        group: the nodes that one attempt may span.
        unit: slots of which each share is a multiple; divides the world size.
        free: slots that a node may give.
    """

    def room(offer: Offer) -> int:
        return free(offer) // unit * unit

    size = demand.world_size
    by_room = sorted(group, key=lambda offer: (room(offer), free(offer), offer.node))
    uneven = [offer for offer in by_room if offer.protocol == PROTOCOL]
    fewest, most = _fewest(size, by_room, room=room), len(group)
    filled = _fewest(size, uneven, room=room)
    if demand.nodes is not None:
        fewest, most, filled = demand.nodes, min(demand.nodes, most), None
    for count in range(fewest or most + 1, (filled or most) + 1):
        share = size // count
        if size % (count * unit) == 0 and room(by_room[-count]) >= share:
            roomy = [offer for offer in by_room if room(offer) >= share][:count]
            return [
                NodeShare(offer, share) for offer in sorted(roomy, key=lambda offer: offer.node)
            ]
    return None if filled is None else _fill(size, uneven, count=filled, room=room)


def _fewest(size: int, by_room: Sequence[Offer], *, room: Callable[[Offer], int]) -> int | None:
    """Return how many of the nodes, the largest first, hold so many slots together."""
    sums = accumulate(room(offer) for offer in reversed(by_room))
    return next((count for count, held in enumerate(sums, 1) if held >= size), None)


def _fill(
    size: int, by_room: Sequence[Offer], *, count: int, room: Callable[[Offer], int]
) -> list[NodeShare]:
    """Return shares on so many nodes, no fewer of which hold `size` slots together.

    Of the largest nodes, each is replaced by the smallest other one with which the sum suffices.
    """
    others, used = list(by_room[:-count]), list(by_room[-count:])
    spare = sum(map(room, used)) - size
    for place in reversed(range(count)):
        found = bisect_left(others, room(used[place]) - spare, key=room)
        if found < len(others) and room(others[found]) < room(used[place]):
            spare -= room(used[place]) - room(others[found])
            used[place] = others.pop(found)
    shares = []
    for offer in sorted(used, key=lambda offer: (-room(offer), offer.node)):
        shares.append(NodeShare(offer, min(room(offer), size)))
        size -= shares[-1].slots
    return shares

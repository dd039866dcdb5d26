"""Where a demand fits: the sets of nodes that it may span, and its shares on the fewest nodes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, Self

from server.cluster.placement.demand import Demand, Offer
from server.cluster.placement.open_nodes import BY_FREE
from trainyard.protocol.attempt import NodeAllocation


class NodeGroup(NamedTuple):
    """Set of nodes that one attempt may span."""

    offers: Sequence[Offer]
    unit: int
    """Unit of the demand on these nodes; the number of slots of every share is a multiple of the
    unit."""

    def by_free(self) -> Self:
        """Return the group with its nodes sorted by `BY_FREE`."""
        return self._replace(offers=sorted(self.offers, key=BY_FREE))

    def without(self, nodes: Container[str]) -> Self:
        """Return the group without some nodes, given by name."""
        return self._replace(offers=[offer for offer in self.offers if offer.node not in nodes])


class NodeShare(NamedTuple):
    """Part of a demand on one node."""

    offer: Offer
    slots: int


def fits(demand: Demand, offers: Sequence[Offer]) -> bool:
    """Return whether a demand could start now if it waited alone."""
    return allocate(demand, offers) is not None


def allocate(demand: Demand, offers: Sequence[Offer]) -> tuple[NodeAllocation, ...] | None:
    """Return the allocation of a demand that waits alone; None if it cannot start now."""
    spanned = [NodeGroup(group, unit_on(demand, group)) for group in groups(demand, offers)]
    return choose(demand, [group.by_free() for group in spanned])


def eligible_for(demand: Demand, offers: Sequence[Offer]) -> list[Offer]:
    """Return the nodes with slots, free or held, that meet all needs but size and whole GPUs."""
    # There may be thousands of nodes, so attributes are read once.
    device, roots, storage = demand.device, {*demand.roots}, demand.storage
    excluded, selects = demand.exclude_nodes, demand.node_selector
    return [
        offer
        for offer in offers
        if offer.slots > 0
        and (device == "auto" or device == offer.device)
        and not (excluded and offer.node in excluded)
        and (not selects or has_labels(demand, offer))
        and (offer.accounts is None or offer.why_not_as(demand.account) is None)
        and offer.roots.keys() >= roots
        and (storage is None or offer.roots.get(storage[0]) == storage[1])
    ]


def has_labels(demand: Demand, offer: Offer) -> bool:
    """Return whether a node has the labels that a demand selects."""
    return all(offer.labels.get(key) == value for key, value in demand.node_selector)


def groups(demand: Demand, offers: Sequence[Offer]) -> list[list[Offer]]:
    """Return the sets of nodes that one attempt may span.

    The nodes of a set have the same kind of device, the same fabric and the same storage roots.
    Either all of them or none run jobs under the accounts of owners.
    """
    eligible = eligible_for(demand, offers)
    if demand.device == "auto" and any(offer.device == "cuda" for offer in eligible):
        eligible = [offer for offer in eligible if offer.device == "cuda"]
    # After the choice of GPUs, so that the demand waits if all GPUs are divided.
    if demand.world_size > 1:
        eligible = [o for offer in eligible if (o := offer.without_partitions()).slots > 0]
    groups: dict[tuple[str, ...], list[Offer]] = {}
    for offer in eligible:
        as_owner = "" if offer.accounts is None else "owner"
        key = (offer.device, offer.fabric, as_owner, *[offer.roots[root] for root in demand.roots])
        groups.setdefault(key, []).append(offer)
    return [groups[key] for key in sorted(groups)]


def unit_on(demand: Demand, group: Sequence[Offer]) -> int:
    """Return the unit of a demand on these nodes.

    The result is the first unit with which the demand would fit if all slots were free. So a demand
    waits for held slots rather than use a less preferred unit. The unit is 1 for a demand with a
    fixed number of nodes, because its shares are equal anyway.
    """
    units = demand.units if demand.nodes is None else ()
    return next((unit for unit in units if could_hold(demand, NodeGroup(group, unit))), 1)


def could_hold(demand: Demand, group: NodeGroup) -> bool:
    """Return whether the nodes could hold a demand if their slots were free."""
    by_slots = sorted(group.offers, key=lambda offer: (offer.slots, offer.node))
    return _spread(demand, by_slots, unit=group.unit, free=lambda offer: offer.slots) is not None


def choose(demand: Demand, groups: Sequence[NodeGroup]) -> tuple[NodeAllocation, ...] | None:
    """Return the allocation of a demand on the fewest nodes, or None if it does not fit.

    If several allocations need this number of nodes, the one in the fewest blocks is best, then the
    one in the fewest racks, then the one on the nodes with the fewest free slots. An allocation
    lists its spare nodes last.

    Args:
        demand: the demand, of one slot or more.
        groups: the nodes that one attempt may span, each group sorted by `BY_FREE`.
    """
    fitting = [shares for group in groups for shares in _spreads(demand, group)]
    if not fitting:
        return None
    best = min(fitting, key=_cost)
    return tuple(
        NodeAllocation(node=offer.node, node_rank=rank, slots=offer.free[:size])
        for rank, (offer, size) in enumerate(best)
    )


def fits_with(demand: Demand, groups: Sequence[NodeGroup], *, freed: Mapping[str, int]) -> bool:
    """Return whether a demand fits on the free slots and the `freed` slots of the nodes."""

    def free(offer: Offer) -> int:
        return len(offer.free) + freed.get(offer.node, 0)

    def by_free(group: Sequence[Offer]) -> list[Offer]:
        # A round calls this dozens of times on all nodes; a numeric key takes a fifth of the time
        # of a tuple.
        room = [len(offer.free) + freed.get(offer.node, 0) for offer in group]
        return [group[index] for index in sorted(range(len(group)), key=room.__getitem__)]

    return any(
        _spread(demand, by_free(group.offers), unit=group.unit, free=free) for group in groups
    )


def _spreads(demand: Demand, group: NodeGroup) -> Iterator[list[NodeShare]]:
    """Yield the shares on a set of nodes.

    If these shares span several places, also yield the shares within each place that can hold the
    demand.
    """

    def free(offer: Offer) -> int:
        return len(offer.free)

    shares = _spread(demand, group.offers, unit=group.unit, free=free)
    if shares is None:
        return
    yield shares
    if len(shares) == 1 or _cost(shares)[1:3] == (1, 1):
        return
    places: dict[tuple[str, ...], list[Offer]] = {}
    for offer in group.offers:
        if offer.free:
            places.setdefault(offer.place, []).append(offer)
            places.setdefault(offer.place[:1], []).append(offer)
    for place in places.values():
        if sum(map(free, place)) >= demand.slots:
            within = _spread(demand, place, unit=group.unit, free=free)
            if within is not None:
                yield within


def _cost(shares: Sequence[NodeShare]) -> tuple[int, int, int, int]:
    """Return the numbers of nodes, blocks, racks and free slots of an allocation."""
    places = {share.offer.place for share in shares}
    blocks = {block for block, _ in places}
    return len(shares), len(blocks), len(places), sum(len(share.offer.free) for share in shares)


def _spread(
    demand: Demand, by_free: Sequence[Offer], *, unit: int, free: Callable[[Offer], int]
) -> list[NodeShare] | None:
    """Return the shares on the fewest nodes that hold the demand, the larger shares first.

    The shares are equal if equal shares fit on this number of nodes. Otherwise the larger nodes are
    filled, and the last node holds the remaining slots. Nodes on which few slots remain free are
    preferred. Spare nodes come last, each with a share of the same size.

    Args:
        demand: the demand, of one slot or more.
        by_free: the nodes that one attempt may span, sorted by `free`.
        unit: divides the world size; every share is a multiple of the unit.
        free: returns the number of slots that a node may give.
    """

    def in_units(offer: Offer) -> int:
        return free(offer) // unit * unit

    room = free if unit == 1 else in_units
    size, most = demand.world_size, len(by_free)
    fewest = _fewest(size, by_free, room=room) if demand.nodes is None else demand.nodes
    if fewest is None or (reserved := fewest + demand.spare_nodes) > most:
        return None
    share = size // fewest
    if size % (fewest * unit) == 0 and room(by_free[-reserved]) >= share:
        return _even(by_free, share, count=fewest, spares=demand.spare_nodes, room=room)
    if demand.nodes is not None:
        return None
    return _fill(size, by_free, count=fewest, room=room)


def _even(
    by_room: Sequence[Offer],
    share: int,
    *,
    count: int,
    spares: int = 0,
    room: Callable[[Offer], int],
) -> list[NodeShare]:
    """Return equal shares on the smallest nodes that hold a share; enough nodes must hold one."""
    first = bisect_left(by_room, share, key=room)
    last = first + count
    ranks = sorted(by_room[first:last], key=lambda offer: offer.node)
    return [NodeShare(offer, share) for offer in (*ranks, *by_room[last : last + spares])]


def _fewest(size: int, by_room: Sequence[Offer], *, room: Callable[[Offer], int]) -> int | None:
    """Return the lowest number of nodes that together hold `size` slots; None if no number does."""
    sums = accumulate(room(offer) for offer in reversed(by_room))
    return next((count for count, held in enumerate(sums, 1) if held >= size), None)


def _fill(
    size: int, by_room: Sequence[Offer], *, count: int, room: Callable[[Offer], int]
) -> list[NodeShare]:
    """Return shares on `count` nodes, the fewest nodes that together hold `size` slots.

    The function takes the largest nodes. It then replaces each of them, the largest first, by the
    smallest other node with which the sum is still large enough.
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

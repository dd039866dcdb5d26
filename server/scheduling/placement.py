"""Placement: which queued jobs get which slots, and why the others wait; pure (lifecycle, 3-5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from server.nodes.capacity import (
    Demand,
    Offer,
    choose,
    could_hold,
    eligible_for,
    groups,
    unit_on,
)
from trainyard.protocol.attempt import NodeAllocation
from trainyard.protocol.worker_messages import PROTOCOL

NO_NODE = "no node is online that takes new work"


@dataclass(frozen=True)
class QueuedJob:
    """A job of the queue."""

    id: str
    name: str
    demand: Demand


@dataclass(frozen=True)
class QueuedOperation:
    """An operation of the queue."""

    id: str
    demand: Demand
    needs_idle_node: bool = False
    """Whether it waits for a node without a held slot."""


@dataclass(frozen=True)
class Decisions:
    """What becomes of each job; of those behind a cut, nothing."""

    placed: Mapping[str, tuple[NodeAllocation, ...]]
    """Allocation of each job that starts, by job id."""
    waiting: Mapping[str, str]
    """Why each other one waits, by job id."""


def decide(
    jobs: Sequence[QueuedJob], offers: Sequence[Offer], *, cut: Collection[Demand] = ()
) -> Decisions:
    """Place the jobs, in their order, on the offers: each whole or not at all.

    A job that the nodes could hold, were they empty, keeps all of them from those behind it, so
    that a large job does not wait for ever; one that is larger than what is online keeps nothing.
    Where one does not fit, none behind it with the same demand does: slots are only taken and
    nodes only kept.

    Args:
        jobs: the jobs, in the order of the queue.
        offers: the nodes.
        cut: demands of which the queue holds more than `jobs` has. When the last job of such a
            demand is placed, nothing behind it is decided: it could overtake one that is left out.
    """
    placed: dict[str, tuple[NodeAllocation, ...]] = {}
    waiting: dict[str, str] = {}
    left = list(offers)
    kept_for: dict[str, str] = {}  # node -> name of the job that keeps it
    reasons: dict[Demand, str] = {}
    last = {job.demand: job.id for job in jobs if job.demand in cut}
    for job in jobs:
        demand = job.demand
        if demand in reasons:
            waiting[job.id] = reasons[demand]
            continue
        eligible = groups(demand, left)
        unkept = [[o for o in group if o.node not in kept_for] for group in eligible]
        units = [unit_on(demand, group) for group in eligible]
        chosen = choose(demand, unkept, units=units)
        if chosen is not None:
            placed[job.id] = chosen
            left = [_take(offer, job.name, chosen) for offer in left]
            if last.get(demand) == job.id:
                break
            continue
        reason = _reason(demand, eligible, kept_for, units=units, offers=offers)
        waiting[job.id] = reasons[demand] = reason
        for group, unit in zip(eligible, units, strict=True):
            if could_hold(demand, group, unit=unit):
                kept_for |= {o.node: kept_for.get(o.node, job.name) for o in group}
    return Decisions(placed, waiting)


def give(
    queue: Sequence[QueuedOperation], offers: Sequence[Offer], busy: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Assign each operation, in order, to the node with the fewest held slots; one a node.

    Args:
        queue: operations by precedence.
        offers: nodes that are online and not draining.
        busy: nodes that have an operation.

    Returns:
        The node of each operation that can start now, and why each other one waits, by its id.
    """
    given: dict[str, str] = {}
    waiting: dict[str, str] = {}
    for operation in queue:
        able = eligible_for(operation.demand, offers)
        idle = [o for o in able if len(o.free) == o.slots] if operation.needs_idle_node else able
        fit = [o for o in idle if o.node not in busy and o.node not in given.values()]
        if fit:
            given[operation.id] = min(fit, key=lambda o: (o.slots - len(o.free), o.node)).node
        elif not offers:
            waiting[operation.id] = NO_NODE
        elif not able:
            waiting[operation.id] = f"no node that is online {_missing(operation.demand, offers)}"
        elif not idle:
            waiting[operation.id] = f"waits until no slot is held on {_names(able)}"
        else:
            have = "has" if len(idle) == 1 else "have"
            waiting[operation.id] = f"waits for {_names(idle)}, which {have} another operation"
    return given, waiting


def _take(offer: Offer, name: str, allocation: Sequence[NodeAllocation]) -> Offer:
    taken = {slot for share in allocation if share.node == offer.node for slot in share.slots}
    if not taken:
        return offer
    holders = Counter(offer.holders) + Counter({name: len(taken)})
    free = tuple(slot for slot in offer.free if slot not in taken)
    return replace(offer, free=free, holders=holders)


def _reason(
    demand: Demand,
    groups: Sequence[Sequence[Offer]],
    kept_for: Mapping[str, str],
    *,
    units: Sequence[int],
    offers: Sequence[Offer],
) -> str:
    """Say why a demand waits, as in `needs 4 slots, 2 free, 2 held by llama-7`."""
    if not offers:
        return NO_NODE
    if not groups:
        return f"{_needs(demand)}; no node that is online {_missing(demand, offers)}"
    pairs = list(zip(groups, units, strict=True))
    enough = [(group, unit) for group, unit in pairs if could_hold(demand, group, unit=unit)]
    group, unit = max(enough or pairs, key=lambda pair: sum(len(o.free) for o in pair[0]))
    if not enough:  # so the unit is 1
        slots = [offer.slots for offer in group]
        lacking = ""
        if demand.nodes is None and sum(slots) >= demand.world_size:
            lacking = f"; shares of different sizes need workers of protocol {PROTOCOL}"
        return f"{_needs(demand)}, {sum(slots)} are online{_by_node(slots)}{lacking}"
    free = [offer for offer in group if offer.free and offer.node not in kept_for]
    count = sum(len(offer.free) for offer in free)
    kept: Counter[str] = Counter()
    for offer in group:
        if offer.free and offer.node in kept_for:
            kept[kept_for[offer.node]] += len(offer.free)
    parts = [f"{count} free{_by_node(len(offer.free) for offer in free)}"]
    if kept and not count:
        parts = []  # no "0 free" next to slots that are free and kept
    parts += [f"{slots} free, kept for {name}, which is ahead" for name, slots in kept.items()]
    return ", ".join([_needs(demand, unit=unit), *parts, *_held(group)])


def _needs(demand: Demand, *, unit: int = 1) -> str:
    needs = f"needs {demand.world_size} {'' if demand.device == 'auto' else demand.device + ' '}"
    needs += "slot" if demand.world_size == 1 else "slots"
    if demand.nodes is not None:
        needs += f" on {demand.nodes} node{'' if demand.nodes == 1 else 's'}"
    return needs if unit == 1 else f"{needs} in units of {unit}"


def _missing(demand: Demand, offers: Sequence[Offer]) -> str:
    """Say what of a demand's needs no node has: slots of its kind, then roots, then its storage.

    Where nodes have all of these, a demand of several slots lacks GPUs that are not divided.
    """
    if eligible_for(demand, offers):
        return "has whole GPUs"
    able = [offer for offer in offers if demand.device in {"auto", offer.device}]
    if not able:
        return f"has {demand.device} slots"
    such = "" if demand.device == "auto" else "has such slots and "
    if demand.new_fields:
        able = [offer for offer in able if offer.protocol == PROTOCOL]
        if not able:
            fields = ", ".join(demand.new_fields)
            return f"{such}has a worker of protocol {PROTOCOL}, for {fields}"
    unseen = [root for root in demand.roots if all(root not in offer.roots for offer in able)]
    if unseen or all(set(demand.roots) - offer.roots.keys() for offer in able):
        roots = unseen or demand.roots
        return f"{such}sees the root{'' if len(roots) == 1 else 's'} {', '.join(roots)}"
    return f"{such}sees its checkpoints"


def _by_node(slots: Iterable[int]) -> str:
    """Return the slots of each of several nodes, the eight largest numbers, as in ` (4 + 2)`."""
    largest = sorted(slots, reverse=True)[:8]
    return f" ({' + '.join(map(str, largest))})" if len(largest) > 1 else ""


def _held(group: Sequence[Offer], most: int = 3) -> list[str]:
    holders: Counter[str] = Counter()
    for offer in group:
        holders.update(offer.holders)
    named = [f"{slots} held by {name}" for name, slots in holders.most_common(most)]
    others = sum(slots for _, slots in holders.most_common()[most:])
    return [*named, *([f"{others} by others"] if others else [])]


def _names(offers: Sequence[Offer], most: int = 3) -> str:
    names = sorted(offer.node for offer in offers)
    more = [f"{len(names) - most} others"] if len(names) > most else []
    listed = [*names[:most], *more]
    return f"{', '.join(listed[:-1])} or {listed[-1]}" if len(listed) > 1 else listed[0]

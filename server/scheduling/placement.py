"""Placement: which queued jobs get which slots, and why the others wait; pure (lifecycle, 3-5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from server.nodes.capacity import Demand, Offer, Shape, choose, groups, spread
from trainyard.protocol.attempt import NodeAllocation
from trainyard.protocol.worker_messages import PROTOCOL


@dataclass(frozen=True)
class Decisions:
    """What becomes of each demand; of those behind a cut, nothing."""

    placed: Mapping[str, tuple[NodeAllocation, ...]]
    """Allocation of each job that starts, by job id."""
    waiting: Mapping[str, str]
    """Why each other one waits, by job id."""


def decide(
    demands: Sequence[Demand], offers: Sequence[Offer], *, cut: Collection[Shape] = ()
) -> Decisions:
    """Place the demands, in their order, on the offers: each whole or not at all.

    A demand that the nodes could hold, were they empty, keeps all of them from those behind it, so
    that a large job does not wait for ever; one that is larger than what is online keeps nothing.
    Where one of a shape does not fit, none behind it with the same shape does: slots are only taken
    and nodes only kept.

    Args:
        demands: what jobs need, in the order of the queue.
        offers: the nodes.
        cut: shapes of which the queue holds more than `demands` has. When the last one of such a
            shape is placed, nothing behind it is decided: it could overtake one that is left out.
    """
    placed: dict[str, tuple[NodeAllocation, ...]] = {}
    waiting: dict[str, str] = {}
    left = list(offers)
    kept_for: dict[str, str] = {}  # node -> name of the job that keeps it
    reasons: dict[Shape, str] = {}
    last = {demand.shape: demand.job_id for demand in demands if demand.shape in cut}
    for demand in demands:
        if demand.shape in reasons:
            waiting[demand.job_id] = reasons[demand.shape]
            continue
        eligible = groups(demand, left)
        unkept = [[o for o in group if o.node not in kept_for] for group in eligible]
        chosen = choose(demand, unkept)
        if chosen is not None:
            placed[demand.job_id] = chosen
            left = [_take(offer, demand, chosen) for offer in left]
            if last.get(demand.shape) == demand.job_id:
                break
            continue
        reason = _reason(demand, eligible, kept_for, offers=offers)
        waiting[demand.job_id] = reasons[demand.shape] = reason
        for group in eligible:
            if spread(demand, group, free=lambda offer: offer.slots) is not None:
                kept_for |= {o.node: kept_for.get(o.node, demand.name) for o in group}
    return Decisions(placed, waiting)


def _take(offer: Offer, demand: Demand, allocation: Sequence[NodeAllocation]) -> Offer:
    taken = {slot for share in allocation if share.node == offer.node for slot in share.slots}
    if not taken:
        return offer
    holders = Counter(offer.holders) + Counter({demand.name: len(taken)})
    free = tuple(slot for slot in offer.free if slot not in taken)
    return Offer(offer.node, offer.device, offer.slots, free, offer.roots, holders, offer.protocol)


def _reason(
    demand: Demand,
    groups: Sequence[Sequence[Offer]],
    kept_for: Mapping[str, str],
    *,
    offers: Sequence[Offer],
) -> str:
    """Say why a demand waits, as in `needs 4 slots, 2 free, 2 held by llama-7`."""
    if not offers:
        return "no node is online that takes new work"
    needs = f"needs {demand.world_size} {'' if demand.device == 'auto' else demand.device + ' '}"
    needs += "slot" if demand.world_size == 1 else "slots"
    if demand.nodes is not None:
        needs += f" on {demand.nodes} node{'' if demand.nodes == 1 else 's'}"
    if not groups:
        return f"{needs}; no node that is online {_missing(demand, offers)}"
    enough = [g for g in groups if spread(demand, g, free=lambda o: o.slots) is not None]
    group = max(enough or groups, key=lambda g: sum(len(o.free) for o in g))
    if not enough:
        return (
            f"{needs}, {sum(o.slots for o in group)} are online{_by_node(o.slots for o in group)}"
        )
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
    return ", ".join([needs, *parts, *_held(group)])


def _missing(demand: Demand, offers: Sequence[Offer]) -> str:
    """Say what of a demand's needs no node has: slots of its kind, then roots, then its storage."""
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

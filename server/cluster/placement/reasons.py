"""Texts with the reason why a job or an operation waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from server.cluster.placement.demand import Demand, Offer
from server.cluster.placement.fit import NodeGroup, could_hold, eligible_for, has_labels
from trainyard.base.labels import in_words

NO_NODE = "no node is online that takes new work"
SIZES_NAMED = 8


def why_job_waits(
    demand: Demand,
    groups: Sequence[NodeGroup],
    kept_for: Mapping[str, str],
    *,
    offers: Sequence[Offer],
) -> str:
    """Return the reason why a demand waits, such as `needs 4 slots, 2 free, 2 held by llama-7`."""
    if not offers:
        return NO_NODE
    if not groups:
        return f"{_needs(demand)}; no node that is online {_missing(demand, offers)}"
    enough = [group for group in groups if could_hold(demand, group)]
    group, unit = max(enough or groups, key=lambda each: sum(len(o.free) for o in each.offers))
    if not enough:  # the unit is 1 then, so it is not named
        slots = [offer.slots for offer in group]
        online = f"{_needs(demand)}, {sum(slots)} are online{_by_node(slots)}"
        return ", ".join([online, *_withheld(group)])
    free = [offer for offer in group if offer.free and offer.node not in kept_for]
    count = sum(len(offer.free) for offer in free)
    kept: Counter[str] = Counter()
    for offer in group:
        if offer.free and offer.node in kept_for:
            kept[kept_for[offer.node]] += len(offer.free)
    parts = [f"{count} free{_by_node(len(offer.free) for offer in free)}"]
    if kept and not count:
        parts = []  # do not write "0 free" next to slots that are free but kept
    parts += [f"{slots} free, kept for {name}, which is ahead" for name, slots in kept.items()]
    return ", ".join([_needs(demand, unit=unit), *parts, *_held(group), *_withheld(group)])


def why_operation_waits(
    demand: Demand, able: Sequence[Offer], idle: Sequence[Offer], *, offers: Sequence[Offer]
) -> str:
    """Return the reason why an operation waits.

    `offers` has the nodes that take new work, and `able` has the nodes that could run the
    operation. `idle` has the nodes that could run it now if they had no other operation.
    """
    if not offers:
        return NO_NODE
    if not able:
        return f"no node that is online {_missing(demand, offers)}"
    if not idle:
        return f"waits until no slot is held on {_names(able)}"
    have = "has" if len(idle) == 1 else "have"
    return f"waits for {_names(idle)}, which {have} another operation"


def _needs(demand: Demand, *, unit: int = 1) -> str:
    needs = f"needs {demand.world_size} {'' if demand.device == 'auto' else demand.device + ' '}"
    needs += "slot" if demand.world_size == 1 else "slots"
    if demand.nodes is not None:
        needs += f" on {demand.nodes} node{'' if demand.nodes == 1 else 's'}"
    if demand.spare_nodes:
        needs += f" and {demand.spare_nodes} spare node{'' if demand.spare_nodes == 1 else 's'}"
    return needs if unit == 1 else f"{needs} in units of {unit}"


def _missing(demand: Demand, offers: Sequence[Offer]) -> str:
    """Return the first need that no node meets.

    The needs are checked in the order slots, labels, exclusions, accounts, roots, storage.

    If some nodes meet all of these needs, the demand waits because it needs several slots and all
    GPUs of these nodes are divided.
    """
    if eligible_for(demand, offers):
        return "has whole GPUs"
    able = [offer for offer in offers if demand.device in {"auto", offer.device}]
    if not able:
        return f"has {demand.device} slots"
    such = "" if demand.device == "auto" else "has such slots and "
    usable = [offer for offer in able if offer.slots > 0]
    if not usable:
        return f"offers a slot: {', '.join(_withheld(able))}"
    able = [offer for offer in usable if has_labels(demand, offer)]
    if not able:
        return f"{such}has the labels {in_words(dict(demand.node_selector))}"
    able = [offer for offer in able if offer.node not in demand.exclude_nodes]
    if not able:
        labels = f"has the labels {in_words(dict(demand.node_selector))} and "
        which = labels if demand.node_selector else ""
        return f"{such}{which}is not in resources.exclude_nodes"
    refusing = [offer for offer in able if offer.why_not_as(demand.account) is not None]
    if len(refusing) == len(able):
        return f"{such}{_without_account(demand.account, refusing)}"
    able = [offer for offer in able if offer not in refusing]
    unseen = [root for root in demand.roots if all(root not in offer.roots for offer in able)]
    if unseen or all(set(demand.roots) - offer.roots.keys() for offer in able):
        roots = unseen or demand.roots
        return f"{such}sees the root{'' if len(roots) == 1 else 's'} {', '.join(roots)}"
    return f"{such}sees its checkpoints"


def _without_account(account: str | None, refusing: Sequence[Offer], most: int = 3) -> str:
    """Return why no node can run jobs of an owner with this Unix account, or without one."""
    if account is None:
        return (
            "runs jobs of an owner without a Unix account; an admin sets it with `trainyard users "
            "change NAME --unix-account ACCOUNT`"
        )
    by_why: dict[str, list[Offer]] = {}
    for offer in sorted(refusing, key=lambda offer: offer.node):
        by_why.setdefault(str(offer.why_not_as(account)), []).append(offer)
    found = [f"{account} {why} on {_names(by_why[why], last='and')}" for why in by_why]
    more = [f"{len(found) - most} other reasons"] if len(found) > most else []
    return f"runs jobs under the account {account}: {'; '.join([*found[:most], *more])}"


def _by_node(slots: Iterable[int]) -> str:
    """Return the slots of each node as text, such as ` (50 x 8 + 4 + 4)`; empty for one node."""
    by_size = sorted(Counter(slots).items(), reverse=True)
    nodes = sum(count for _, count in by_size)
    if nodes < 2:
        return ""
    terms = [
        f"{count} x {size}" if count > 2 else " + ".join([str(size)] * count)
        for size, count in by_size[:SIZES_NAMED]
    ]
    return f" ({' + '.join(terms)}{' + ...' if len(by_size) > SIZES_NAMED else ''})"


def _held(group: Sequence[Offer], most: int = 3) -> list[str]:
    holders: Counter[str] = Counter()
    for offer in group:
        for name, slots in offer.holders.items():
            holders[name] += slots
    first = holders.most_common(most)
    others = holders.total() - sum(slots for _, slots in first)
    named = [f"{slots} held by {name}" for name, slots in first]
    return [*named, *([f"{others} by others"] if others else [])]


def _withheld(offers: Sequence[Offer], most: int = 2) -> list[str]:
    """Return the first `most` withheld slots with their reasons, and the number of other slots."""
    found = [
        f"slot {slot} of {offer.node} is withheld ({reason})"
        for offer in offers
        for slot, reason in offer.withheld.items()
    ]
    more = [f"{len(found) - most} more are withheld"] if len(found) > most else []
    return [*found[:most], *more]


def _names(offers: Sequence[Offer], most: int = 3, *, last: str = "or") -> str:
    names = sorted(offer.node for offer in offers)
    more = [f"{len(names) - most} others"] if len(names) > most else []
    listed = [*names[:most], *more]
    return f"{', '.join(listed[:-1])} {last} {listed[-1]}" if len(listed) > 1 else listed[0]

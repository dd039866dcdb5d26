"""Placement: which queued jobs get which slots, and why the others wait; pure (lifecycle, 3-5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from server.placement.demand import Demand, Offer
from server.placement.fit import choose, could_hold, eligible_for, groups, unit_on
from server.placement.reasons import why_job_waits, why_operation_waits
from trainyard.protocol.attempt import NodeAllocation


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
        reason = why_job_waits(demand, eligible, kept_for, units=units, offers=offers)
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
        else:
            waiting[operation.id] = why_operation_waits(operation.demand, able, idle, offers=offers)
    return given, waiting


def _take(offer: Offer, name: str, allocation: Sequence[NodeAllocation]) -> Offer:
    taken = {slot for share in allocation if share.node == offer.node for slot in share.slots}
    if not taken:
        return offer
    holders = Counter(offer.holders) + Counter({name: len(taken)})
    free = tuple(slot for slot in offer.free if slot not in taken)
    return replace(offer, free=free, holders=holders)

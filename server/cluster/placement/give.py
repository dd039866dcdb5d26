"""Assignment of queued operations to nodes, and reasons why other operations wait."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from server.cluster.placement.demand import Demand, Offer
from server.cluster.placement.fit import eligible_for
from server.cluster.placement.reasons import why_operation_waits


@dataclass(frozen=True)
class QueuedOperation:
    """An operation in the queue."""

    id: str
    demand: Demand
    needs_idle_node: bool = False
    """Whether the operation needs a node on which no slot is held."""
    unclaimed_by: str | None = None
    """Node that got the operation last and did not start it in time; None without such a node."""


def give(
    queue: Sequence[QueuedOperation], offers: Sequence[Offer], busy: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Assign operations, in order, to the nodes with the fewest held slots, one operation per node.

    An operation that a node did not start goes to the next node by name, so that each node gets a
    turn. While all other nodes are busy, the operation waits for one of them.

    Args:
        queue: operations in order of precedence.
        offers: the nodes that take new work.
        busy: nodes that have an operation.

    Returns:
        The node of each operation that starts, and the reason why each other operation waits; both
        by operation id.
    """
    given: dict[str, str] = {}
    waiting: dict[str, str] = {}
    taken = set(busy)
    eligible: dict[Demand, list[Offer]] = {}  # most operations have the same demand
    for operation in queue:
        demand = operation.demand
        if demand not in eligible:
            eligible[demand] = eligible_for(demand, offers)
        able = eligible[demand]
        idle = [o for o in able if len(o.free) == o.slots] if operation.needs_idle_node else able
        fit = [offer for offer in idle if offer.node not in taken]
        if len(idle) > 1:
            fit = [offer for offer in fit if offer.node != operation.unclaimed_by]
        if fit:
            given[operation.id] = _next_node(operation, fit)
            taken.add(given[operation.id])
        else:
            waiting[operation.id] = why_operation_waits(operation.demand, able, idle, offers=offers)
    return given, waiting


def _next_node(operation: QueuedOperation, fit: Sequence[Offer]) -> str:
    last = operation.unclaimed_by
    if last is None:
        return min(fit, key=lambda offer: (offer.slots - len(offer.free), offer.node)).node
    return min((offer.node for offer in fit), key=lambda node: (node <= last, node))

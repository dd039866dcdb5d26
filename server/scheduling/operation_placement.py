"""Assignment of queued operations to nodes, and why the others wait: pure (lifecycle, 32)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from server.nodes.capacity import Offer
from trainyard.protocol.operations import OperationKind
from trainyard.protocol.worker_messages import PROTOCOL


@dataclass(frozen=True)
class Wanted:
    """The part of a queued operation that decides its node."""

    id: str
    kind: OperationKind
    root: str
    storage: str | None
    others: frozenset[str] = frozenset()
    """Further roots that the node must see."""
    new_fields: tuple[str, ...] = ()
    """Fields of its task that a worker of an older protocol cannot read."""


@dataclass(frozen=True)
class Choices:
    """The decision for each operation."""

    given: Mapping[str, str]
    """Node of each operation that can start now, by operation id."""
    waiting: Mapping[str, str]
    """Why each other one waits, by operation id."""


def choose(queue: Sequence[Wanted], offers: Sequence[Offer], busy: frozenset[str]) -> Choices:
    """Assign each operation, in order, to the node with the fewest held slots; one a node.

    Args:
        queue: operations by precedence.
        offers: nodes that are online and not draining.
        busy: nodes that have an operation.
    """
    given: dict[str, str] = {}
    waiting: dict[str, str] = {}
    for operation in queue:
        able = [offer for offer in offers if _can_execute(operation, offer)]
        quiet = [
            offer for offer in able if operation.kind != OperationKind.SCRUB or not _held(offer)
        ]
        fit = [o for o in quiet if o.node not in busy and o.node not in given.values()]
        if fit:
            given[operation.id] = min(fit, key=lambda offer: (_held(offer), offer.node)).node
        else:
            waiting[operation.id] = _reason(operation, offers, able, quiet)
    return Choices(given, waiting)


def _can_execute(operation: Wanted, offer: Offer) -> bool:
    seen = offer.roots.get(operation.root)
    if seen is None or operation.storage not in {None, seen}:
        return False
    if operation.new_fields and offer.protocol < PROTOCOL:
        return False
    return operation.others <= offer.roots.keys()


def _held(offer: Offer) -> int:
    return offer.slots - len(offer.free)


def _reason(
    operation: Wanted, offers: Sequence[Offer], able: Sequence[Offer], quiet: Sequence[Offer]
) -> str:
    """Return why an operation waits, as in `waits for node-1, which has another operation`."""
    if not offers:
        return "no node is online that takes new work"
    if operation.new_fields and all(offer.protocol < PROTOCOL for offer in offers):
        fields = ", ".join(operation.new_fields)
        return f"no node that is online has a worker of protocol {PROTOCOL}, for {fields}"
    if not able:
        roots = sorted({operation.root, *operation.others})
        unseen = [root for root in roots if all(root not in offer.roots for offer in offers)]
        if unseen:
            return f"no node that is online sees the root{_s(unseen)} {', '.join(unseen)}"
        others = f" and {', '.join(sorted(operation.others))}" if operation.others else ""
        return f"no node that is online sees the storage of its checkpoints{others}"
    if not quiet:
        return f"waits until no slot is held on {_names(able)}"
    return (
        f"waits for {_names(quiet)}, which ha{'s' if len(quiet) == 1 else 've'} another operation"
    )


def _names(offers: Sequence[Offer], most: int = 3) -> str:
    names = sorted(offer.node for offer in offers)
    more = [f"{len(names) - most} others"] if len(names) > most else []
    listed = [*names[:most], *more]
    return f"{', '.join(listed[:-1])} or {listed[-1]}" if len(listed) > 1 else listed[0]


def _s(items: Sequence[object]) -> str:
    return "" if len(items) == 1 else "s"

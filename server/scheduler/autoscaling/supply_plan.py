"""Plans which nodes to request and which requests to give up, as a pure function.

See docs/sources.md, 10-12.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from server.cluster.placement.demand import Demand, Offer
from server.cluster.placement.fit import allocate
from trainyard.protocol.attempt import NodeAllocation
from trainyard.protocol.node_sources.messages import SOURCE_LABEL, NodeShape

MAX_DEMANDS = 200
"""Maximum number of jobs at the front of the queue that one plan considers."""
WITHDRAW_AFTER_SECONDS = 30.0
"""Time after which a pending request that no queued job needs is withdrawn."""
ANY_STORAGE = "?"
"""Placeholder for the UUID of a root that no node has reported; it matches any storage."""


@dataclass(frozen=True)
class UnmetJob:
    """A queued job."""

    name: str
    demand: Demand
    least: Demand | None = None
    """Smallest demand of an elastic job; None for other jobs."""


@dataclass(frozen=True)
class Supplier:
    """A usable source of nodes, with its remaining limits."""

    name: str
    shape: NodeShape
    seconds: float | None
    """Length of an allocation, in seconds; None if an allocation has no end."""
    requests_left: int
    """Number of further requests that the source's limits allow."""
    nodes_left: int
    """Number of further nodes that the source's limits allow."""
    nodes_per_request: int
    node_seconds_left: float | None = None
    """Node-seconds left in the month; None if unlimited."""
    wait_seconds: float = 0.0
    """Mean time from recent requests to their starts, in seconds."""
    roots: Mapping[str, str] = field(default_factory=dict)
    """Known UUIDs of the storage roots on the source's nodes, by root name."""

    def takes(self, nodes: int) -> bool:
        """Return whether the limits allow this many nodes, and enough requests for the nodes."""
        if nodes > self.nodes_left or ceil(nodes / self.nodes_per_request) > self.requests_left:
            return False
        left = self.node_seconds_left
        return left is None or (left > 0 and nodes * (self.seconds or 0.0) <= left)

    def after(self, nodes: int) -> Supplier:
        """Return the limits that remain after a request for this many nodes."""
        left = self.node_seconds_left
        return replace(
            self,
            requests_left=self.requests_left - ceil(nodes / self.nodes_per_request),
            nodes_left=self.nodes_left - nodes,
            node_seconds_left=None if left is None else left - nodes * (self.seconds or 0.0),
        )


@dataclass(frozen=True)
class OpenNodeRequest:
    """A request for nodes that is neither withdrawn nor ended."""

    id: str
    source: str
    shape: NodeShape
    coming: int
    """Number of the request's nodes that are still expected to join."""
    joined: tuple[str, ...] = ()
    """Names of the request's nodes that have joined."""
    runs: bool = False
    by_person: bool = False
    unneeded_seconds: float = 0.0
    """Time for which no queued job has needed the request, in seconds."""
    idle_seconds: float | None = None
    """Time for which no node of the request has held an attempt, in seconds; None while a node
    holds an attempt."""
    idle_limit_seconds: float = 0.0
    roots: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeAsk:
    """A request to make."""

    source: str
    nodes: int
    for_job: str


@dataclass(frozen=True)
class SupplyPlan:
    """Requests to make and to give up."""

    ask: Sequence[NodeAsk]
    give_up: Sequence[str]
    """Ids of pending requests that no job needs, and of idle running requests."""
    needed: frozenset[str]
    """Ids of requests with nodes that a queued job needs."""


def plan(
    waiting: Sequence[UnmetJob],
    offers: Sequence[Offer],
    *,
    freed: Mapping[str, Sequence[int]],
    requests: Sequence[OpenNodeRequest],
    suppliers: Sequence[Supplier],
) -> SupplyPlan:
    """Return the requests to make and to give up.

    Each job in turn takes free slots, else slots of coming nodes, else slots that attempts are
    expected to free soon. Only a job that fits on none of these slots requests nodes. A request is
    needed if a job took slots of the request's nodes. Therefore a plan gives up no request that the
    next plan for the same state would make again.

    A waiting elastic job requests nodes for its current size, or for its smallest size if limits
    forbid the current size. A running elastic job causes no request, because it grows only onto
    free slots.

    Args:
        waiting: queued jobs in order; only the first `MAX_DEMANDS` are considered.
        offers: the nodes that accept work.
        freed: slots that attempts are expected to free soon, by node.
        requests: open requests.
        suppliers: the sources that may be used.
    """
    pool = _Pool(offers, freed, requests)
    # Sorted by the wait in whole minutes, to ignore noise, then by name.
    soonest = sorted(suppliers, key=lambda each: (each.wait_seconds // 60, each.name))
    left = {each.name: each for each in soonest}
    asks: list[NodeAsk] = []
    hopeless: set[UnmetJob] = set()
    for job in waiting[:MAX_DEMANDS]:
        like = replace(job, name="")
        if _starts_without_asking(pool, job) or like in hopeless:
            continue
        chosen = _choose(pool, job.demand, left.values())
        if chosen is None and job.least is not None:
            if pool.place(job.least, _COMING) or pool.place(job.least, _FREED):
                continue
            chosen = _choose(pool, job.least, left.values())
        if chosen is None:
            hopeless.add(like)
            continue
        supplier, nodes, allocation = chosen
        left[supplier.name] = supplier.after(len(nodes))
        pool.take(allocation, new=nodes)
        most = supplier.nodes_per_request
        asks += [
            NodeAsk(supplier.name, min(most, len(nodes) - begin), job.name)
            for begin in range(0, len(nodes), most)
        ]
    needed = frozenset(pool.needed)
    give_up = [each.id for each in requests if each.id not in needed and _is_over(each)]
    return SupplyPlan(asks, give_up, needed)


def _starts_without_asking(pool: _Pool, job: UnmetJob) -> bool:
    """Take slots for a job: free slots, else coming nodes, else soon freed slots.

    Return whether the job fits. An elastic job starts at its smallest size if only this size is
    free, and grows later.
    """
    tries = [(job.demand, _FREE), (job.least, _FREE), (job.demand, _COMING), (job.demand, _FREED)]
    return any(demand is not None and pool.place(demand, tier) for demand, tier in tries)


def _is_over(request: OpenNodeRequest) -> bool:
    """Return whether to give up a request that no queued job needs."""
    if request.runs:
        idle = request.idle_seconds
        return idle is not None and idle >= request.idle_limit_seconds
    return not request.by_person and request.unneeded_seconds >= WITHDRAW_AFTER_SECONDS


_FREE, _COMING, _FREED = range(3)
"""Tiers of slots: free slots, slots of coming nodes, slots that are freed soon. Each tier includes
the tiers before it."""


class _Pool:
    """Present and coming nodes, with the slots that no job of the plan has taken."""

    def __init__(
        self,
        offers: Iterable[Offer],
        freed: Mapping[str, Sequence[int]],
        requests: Sequence[OpenNodeRequest],
    ) -> None:
        self.needed: set[str] = set()
        """Ids of requests from which slots were taken."""
        self._free = {offer.node: offer for offer in offers}
        self._freed = {node: {*slots} for node, slots in freed.items() if node in self._free}
        self._coming: dict[str, Offer] = {}
        self._owner = {node: each.id for each in requests for node in each.joined}
        for each in requests:
            for node in _virtual(
                each.id, each.shape, source=each.source, roots=each.roots, count=each.coming
            ):
                self._coming[node.node] = node
                self._owner[node.node] = each.id

    def place(self, demand: Demand, tier: int) -> bool:
        """Take the slots for a demand; return whether the demand fits."""
        found = self.fit(demand, tier)
        if found is not None:
            self.take(found)
        return found is not None

    def fit(
        self, demand: Demand, tier: int = _FREED, further: Sequence[Offer] = ()
    ) -> tuple[NodeAllocation, ...] | None:
        """Return the slots by node for a demand; None if the pool and `further` are too small."""
        nodes = [*self._free.values(), *further]
        if tier >= _FREED:
            nodes = [
                replace(node, free=tuple(sorted({*node.free, *(freed & node.indices)})))
                if (freed := self._freed.get(node.node))
                else node
                for node in nodes
            ]
        if tier >= _COMING:
            nodes += self._coming.values()
        if sum(len(node.free) for node in nodes) < demand.slots:
            return None  # the usual result in a full cluster
        return allocate(demand, [_seen_by(demand, node) for node in nodes])

    def take(self, allocation: Iterable[NodeAllocation], new: Iterable[Offer] = ()) -> None:
        """Add new coming nodes, then take the slots of an allocation."""
        self._coming.update({node.node: node for node in new})
        for share in allocation:
            of = self._free if share.node in self._free else self._coming
            offer = of[share.node]
            of[share.node] = replace(
                offer, free=tuple(slot for slot in offer.free if slot not in share.slots)
            )
            if share.node in self._freed:
                self._freed[share.node] -= {*share.slots}
            if share.node in self._owner:
                self.needed.add(self._owner[share.node])


def _choose(
    pool: _Pool, demand: Demand, suppliers: Iterable[Supplier]
) -> tuple[Supplier, list[Offer], tuple[NodeAllocation, ...]] | None:
    """Return a source, the fewest new nodes that make a demand fit, and the slots on each node.

    The source is the first one that can provide enough nodes. All new nodes come from one source,
    because otherwise the nodes of one source would idle until the nodes of the other source start.
    """
    for supplier in suppliers:
        shape, roots = supplier.shape, supplier.roots
        most = max(ceil(demand.world_size / shape.slots), demand.nodes or 0) + demand.spare_nodes
        name = f"new-{supplier.name}-{supplier.nodes_left}"
        for count in range(1, most + 1):
            if not supplier.takes(count):
                break
            nodes = [*_virtual(name, shape, source=supplier.name, roots=roots, count=count)]
            found = pool.fit(demand, further=nodes)
            if found is not None:
                return supplier, nodes, found
    return None


def _virtual(
    name: str, shape: NodeShape, *, source: str, roots: Mapping[str, str], count: int
) -> Iterator[Offer]:
    """Yield coming nodes as offers."""
    for index in range(count):
        yield Offer(
            node=f"{name}/{index}",
            device=shape.device,
            slots=shape.slots,
            free=tuple(range(shape.slots)),
            roots={root: roots.get(root, ANY_STORAGE) for root in shape.roots},
            labels={**shape.labels, SOURCE_LABEL: source},
        )


def _seen_by(demand: Demand, offer: Offer) -> Offer:
    """Return an offer; if its storage is unknown, assume the storage that the demand needs."""
    if demand.storage is None or offer.roots.get(demand.storage[0]) != ANY_STORAGE:
        return offer
    root, uuid = demand.storage
    return replace(offer, roots={**offer.roots, root: uuid})

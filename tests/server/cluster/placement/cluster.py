"""Nodes and queued jobs for the tests of placement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

from hypothesis import strategies as st

from server.cluster.placement.decide import Decisions
from server.cluster.placement.demand import Demand, Offer, QueuedJob

ROOTS = {"checkpoints": "uuid-1"}


def offer(
    node: str,
    slots: int,
    free: int | None = None,
    *,
    device: str = "cpu",
    roots: dict[str, str] | None = None,
    held_by: str = "other",
) -> Offer:
    left = slots if free is None else free
    assert device in {"cpu", "cuda"}
    return Offer(
        node=node,
        device="cuda" if device == "cuda" else "cpu",
        slots=slots,
        free=tuple(range(slots - left, slots)),
        roots=ROOTS if roots is None else roots,
        holders={held_by: slots - left} if left < slots else {},
    )


def withholding(offer: Offer, *slots: int) -> Offer:
    """Return a node with some withheld slots."""
    return replace(
        offer,
        slots=offer.slots - len(slots),
        free=tuple(slot for slot in offer.free if slot not in slots),
        withheld=dict.fromkeys(slots, "held by another program"),
    )


def job(name: str, world_size: int, **more: object) -> QueuedJob:
    return QueuedJob(name, name, Demand(world_size, **more))  # type: ignore[arg-type]


def nodes_of(decisions: Decisions, job_id: str) -> dict[str, int]:
    return {share.node: len(share.slots) for share in decisions.placed[job_id]}


offers_strategy = st.lists(
    st.tuples(
        st.integers(1, 8),
        st.integers(0, 8),
        st.sampled_from(["cpu", "cuda"]),
        st.sampled_from(["uuid-1", "uuid-2"]),
    ),
    max_size=6,
).map(
    lambda rows: [
        offer(
            f"n{i}",
            slots,
            min(free, slots),
            device=device,
            roots={"checkpoints": root},
        )
        for i, (slots, free, device, root) in enumerate(rows)
    ]
)


jobs_strategy = st.lists(
    st.tuples(
        st.integers(1, 12),
        st.none() | st.integers(1, 4),
        st.sampled_from(["auto", "cpu", "cuda"]),
        st.none() | st.just(("checkpoints", "uuid-2")),
        st.sampled_from([(), (2,), (3,), (4,), (4, 2), (6, 2), (6, 3)]),
        st.integers(0, 2),
    ),
    max_size=8,
).map(
    lambda rows: [
        job(
            f"j{i}",
            count * max(units, default=1),
            nodes=nodes,
            device=device,
            storage=storage,
            units=units,
            spare_nodes=0 if nodes is None else spares,
        )
        for i, (count, nodes, device, storage, units, spares) in enumerate(rows)
    ]
)


def node_counts(demand: Demand, offers: Sequence[Offer]) -> Sequence[int]:
    """Return the possible numbers of nodes of a demand, spare ones included, ascending."""
    if demand.nodes is not None:
        return [demand.nodes + demand.spare_nodes]
    return range(1, len(offers) + 1)


def holds(
    demand: Demand, chosen: Sequence[Offer], *, unit: int, free: Callable[[Offer], int]
) -> bool:
    """Return whether a demand fits on exactly these nodes, in shares of whole units.

    Their number must be in `node_counts`; any of them may be a spare one.
    """
    rooms = [free(o) // unit for o in chosen]
    whole = demand.world_size // unit
    share, rest = divmod(whole, demand.nodes or len(chosen))
    even = rest == 0 and all(room >= share for room in rooms)
    if even or demand.nodes is not None:
        return even
    return min(rooms) > 0 and sum(rooms) >= whole >= len(chosen)


def unit_of(demand: Demand, group: Sequence[Offer]) -> int:
    """Return the first unit in which some of the nodes would hold a demand if empty; else 1."""
    sets = [chosen for size in range(1, len(group) + 1) for chosen in combinations(group, size)]
    for unit in () if demand.nodes is not None else demand.units:
        if any(holds(demand, chosen, unit=unit, free=lambda o: o.slots) for chosen in sets):
            return unit
    return 1

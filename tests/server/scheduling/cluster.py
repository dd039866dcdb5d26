"""Nodes and queued jobs for the tests of placement."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from server.nodes.capacity import Demand, Offer, groups
from server.scheduling.placement import Decisions, QueuedJob
from trainyard.protocol.worker_messages import PROTOCOL

ROOTS = {"checkpoints": "uuid-1"}


def offer(
    node: str,
    slots: int,
    free: int | None = None,
    *,
    device: str = "cpu",
    roots: dict[str, str] | None = None,
    held_by: str = "other",
    protocol: int = PROTOCOL,
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
        protocol=protocol,
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
        st.sampled_from([PROTOCOL - 1, PROTOCOL, PROTOCOL]),
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
            protocol=protocol,
        )
        for i, (slots, free, device, root, protocol) in enumerate(rows)
    ]
)


jobs_strategy = st.lists(
    st.tuples(
        st.integers(1, 12),
        st.none() | st.integers(1, 4),
        st.sampled_from(["auto", "cpu", "cuda"]),
        st.none() | st.just(("checkpoints", "uuid-2")),
        st.sampled_from([(), (2,), (3,), (4,), (4, 2), (6, 2), (6, 3)]),
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
        )
        for i, (count, nodes, device, storage, units) in enumerate(rows)
    ]
)


def unit_of(demand: Demand, offers: Sequence[Offer]) -> int:
    """Return the largest unit that a node holds which the demand may use."""
    if demand.nodes is not None:
        return 1
    eligible = [o for group in groups(demand, offers) for o in group]
    return max([unit for unit in demand.units for o in eligible if o.slots >= unit], default=1)

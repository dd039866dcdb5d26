"""Where one demand is placed: the fewest nodes, whole units, equal shares where possible."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given

from server.cluster.placement.decide import decide
from server.cluster.placement.demand import Demand, Offer, QueuedJob
from server.cluster.placement.fit import fits, groups
from tests.server.cluster.placement.cluster import (
    holds,
    job,
    jobs_strategy,
    node_counts,
    nodes_of,
    offer,
    offers_strategy,
    unit_of,
)
from trainyard.protocol.attempt import NodeAllocation


def test_the_fewest_nodes_and_the_fullest_first() -> None:
    offers = [offer("a", 4), offer("b", 4, 2), offer("c", 8)]
    assert nodes_of(decide([job("j", 2)], offers), "j") == {"b": 2}
    assert nodes_of(decide([job("j", 6)], offers), "j") == {"c": 6}
    assert nodes_of(decide([job("j", 12)], [offer("a", 6), offer("b", 6)]), "j") == {
        "a": 6,
        "b": 6,
    }
    assert nodes_of(decide([job("j", 4, nodes=2)], offers), "j") == {"b": 2, "a": 2}


def least_nodes(demand: Demand, offers: Sequence[Offer]) -> int | None:
    """Return the fewest nodes of one group that could hold a demand, by trying every set."""
    spanned = [(group, unit_of(demand, group)) for group in groups(demand, offers)]
    for count in node_counts(demand, offers):
        for group, unit in spanned:
            for chosen in combinations(group, count):
                if holds(demand, chosen, unit=unit, free=lambda o: len(o.free)):
                    return count
    return None


@given(jobs_strategy, offers_strategy)
def test_an_allocation_is_found_where_there_is_one_and_has_the_fewest_nodes(
    jobs: Sequence[QueuedJob], offers: Sequence[Offer]
) -> None:
    for wanted in jobs:
        demand, found = wanted.demand, decide([wanted], offers).placed.get(wanted.id)
        assert (found and len(found)) == least_nodes(demand, offers)
        if found and demand.nodes is not None:  # so a spare node can replace any other
            assert {len(share.slots) for share in found} == {demand.world_size // demand.nodes}
            assert len({share.node for share in found}) == demand.nodes + demand.spare_nodes


@pytest.mark.parametrize(
    ("world_size", "free", "shares"),
    [
        (5, [4, 1], [4, 1]),
        (5, [1, 4], [4, 1]),  # the larger share first
        (6, [4, 3, 3], [3, 3]),  # equal shares, where as few nodes hold them
        (5, [4, 4, 1], [4, 1]),  # the least to spare
        (5, [4, 3, 2], [3, 2]),
        (11, [8, 4, 4, 3], [8, 3]),
        (7, [3, 3, 3], [3, 3, 1]),
        (10, [4, 4, 4, 1], [4, 4, 2]),
        (8, [4, 2, 2, 2, 2], [4, 2, 2]),
    ],
)
def test_shares_are_equal_else_the_larger_nodes_are_filled(
    world_size: int, free: list[int], shares: list[int]
) -> None:
    offers = [offer(f"n{i}", count) for i, count in enumerate(free)]
    placed = decide([job("j", world_size)], offers).placed["j"]
    assert [len(share.slots) for share in placed] == shares
    assert [share.node_rank for share in placed] == list(range(len(shares)))


@pytest.mark.parametrize(
    ("world_size", "units", "free", "shares"),
    [
        (8, (4,), [7, 4, 1], [4, 4]),  # not 7 + 1: 4 ranks would lie on two nodes
        (12, (4,), [9, 7, 4], [8, 4]),
        (8, (4, 2), [3, 3, 2, 2], [2, 2, 2, 2]),  # no node has 4: pairs stay together
        (8, (8, 4), [4, 4], [4, 4]),
        (4, (4,), [2, 1, 1], [2, 1, 1]),  # no node has 4
        (3, (3,), [2, 3], [3]),
        (12, (4, 2), [6, 6], [6, 6]),  # 8 slots in fours, 12 in pairs
        (8, (4,), [4, 2, 2, 2, 2], [4, 2, 2]),  # one node of 4 does not hold two fours
        (8, (4, 2), [4, 3, 3], [4, 2, 2]),
    ],
)
def test_shares_hold_whole_units_where_a_node_is_that_large(
    world_size: int, units: tuple[int, ...], free: list[int], shares: list[int]
) -> None:
    offers = [offer(f"n{i}", count) for i, count in enumerate(free)]
    decisions = decide([job("j", world_size, units=units)], offers)
    assert [len(share.slots) for share in decisions.placed["j"]] == shares


def test_a_job_waits_for_whole_units() -> None:
    offers = [offer("large", 4, 1), offer("a", 3), offer("b", 3)]
    decisions = decide([job("j", 4, units=(4, 2)), job("behind", 1)], offers)
    assert (
        decisions.waiting["j"] == "needs 4 slots in units of 4, 7 free (3 + 3 + 1), 3 held by other"
    )
    assert nodes_of(decide([job("j", 4, units=(4, 2), nodes=2)], offers), "j") == {"a": 2, "b": 2}


def test_a_large_node_changes_no_unit_that_it_cannot_serve() -> None:
    wanted = job("j", 8, units=(4,))
    pairs = [offer(f"n{i}", 2) for i in range(4)]
    alone = {f"n{i}": 2 for i in range(4)}
    assert nodes_of(decide([wanted], pairs), "j") == alone
    other_root = offer("large", 4, roots={"checkpoints": "uuid-2"})
    assert nodes_of(decide([wanted], [*pairs, other_root]), "j") == alone


def test_of_equal_storages_the_fuller_one_is_taken() -> None:
    other = {"checkpoints": "uuid-0"}
    offers = [offer("a", 4, 4, roots=other), offer("b", 4, 3), offer("c", 4, 2), offer("d", 4, 2)]
    assert nodes_of(decide([job("j", 2)], offers), "j") == {"c": 2}
    assert nodes_of(decide([job("j", 4)], offers), "j") == {"a": 4}
    spread = [offer("a", 2, roots=other), offer("b", 2, roots=other), offer("c", 8, 6)]
    assert nodes_of(decide([job("j", 4)], spread), "j") == {"c": 4}


def test_nodes_of_several_kinds_and_storages_are_never_mixed() -> None:
    offers = [
        offer("a", 2, roots={"checkpoints": "u", "data": "v"}),
        offer("b", 2, roots={"checkpoints": "u", "data": "w"}),
        offer("c", 2, device="cuda", roots={"checkpoints": "u", "data": "v"}),
    ]
    both = ("checkpoints", "data")
    assert not fits(job("j", 4, device="cpu", roots=both).demand, offers)
    assert fits(job("j", 4, device="cpu").demand, offers)
    assert fits(job("j", 2, roots=both, storage=("data", "v")).demand, offers)
    assert not fits(job("j", 2, device="cpu", roots=both, storage=("data", "x")).demand, offers)
    assert fits(job("j", 3, device="cpu").demand, offers)


def test_slots_are_taken_from_the_front_and_ranks_follow_the_names() -> None:
    offers = [offer("b", 4, 3), offer("a", 4, 2)]
    first, second = job("first", 4, nodes=2), job("second", 1)
    placed = decide([first, second], offers).placed
    assert placed["first"] == (
        NodeAllocation(node="a", node_rank=0, slots=(2, 3)),
        NodeAllocation(node="b", node_rank=1, slots=(1, 2)),
    )
    assert placed["second"] == (NodeAllocation(node="b", node_rank=0, slots=(3,)),)

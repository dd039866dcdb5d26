"""Labels in placement: selectors, fabrics that no attempt spans, blocks and racks for locality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.cluster.placement.decide import decide
from server.cluster.placement.demand import Demand, Offer, QueuedJob
from server.cluster.placement.fit import groups
from tests.server.cluster.placement.cluster import holds, job, node_counts, nodes_of, offer, unit_of

LABELS = st.fixed_dictionaries(
    {},
    optional={
        "fabric": st.sampled_from(["ib", ""]),
        "block": st.sampled_from(["b1", "b2"]),
        "rack": st.sampled_from(["r1", "r2"]),
        "zone": st.sampled_from(["a", "b"]),
    },
)
OFFERS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4), LABELS), max_size=6).map(
    lambda rows: [
        labeled(f"n{i}", slots, free=min(free, slots), **labels)
        for i, (slots, free, labels) in enumerate(rows)
    ]
)
SELECTORS = st.sampled_from([(), (("zone", "a"),), (("rack", "r1"), ("zone", "a"))])
JOBS = st.lists(
    st.tuples(
        st.integers(1, 8),
        st.none() | st.integers(1, 3),
        SELECTORS,
        st.sampled_from([(), ("n0",), ("n0", "n3")]),
    ),
    max_size=5,
).map(
    lambda rows: [
        job(f"j{i}", size, nodes=nodes, node_selector=selector, exclude_nodes=excluded)
        for i, (size, nodes, selector, excluded) in enumerate(rows)
    ]
)


def labeled(node: str, slots: int, *, free: int | None = None, **labels: str) -> Offer:
    return replace(offer(node, slots, free), labels=labels)


@given(JOBS, OFFERS)
def test_an_attempt_has_the_labels_that_it_selects_and_spans_one_fabric(
    jobs: Sequence[QueuedJob], offers: Sequence[Offer]
) -> None:
    of = {offer.node: offer for offer in offers}
    demands = {each.id: each.demand for each in jobs}
    for job_id, shares in decide(jobs, offers).placed.items():
        demand, chosen = demands[job_id], [of[share.node] for share in shares]
        assert len({offer.labels.get("fabric", "") for offer in chosen}) == 1
        assert all(dict(demand.node_selector).items() <= offer.labels.items() for offer in chosen)
        assert not {offer.node for offer in chosen} & {*demand.exclude_nodes}


def smallest_sets(demand: Demand, offers: Sequence[Offer]) -> list[tuple[Offer, ...]]:
    """Return every smallest set of nodes that can hold a demand, by trying all sets."""
    for count in node_counts(demand, offers):
        found = [
            chosen
            for group in groups(demand, offers)
            for chosen in combinations(group, count)
            if holds(demand, chosen, unit=unit_of(demand, group), free=lambda o: len(o.free))
        ]
        if found:
            return found
    return []


@given(JOBS, OFFERS)
def test_of_the_fewest_nodes_those_of_one_block_and_of_one_rack_are_taken(
    jobs: Sequence[QueuedJob], offers: Sequence[Offer]
) -> None:
    of = {offer.node: offer for offer in offers}
    for wanted in jobs:
        possible = smallest_sets(wanted.demand, offers)
        shares = decide([wanted], offers).placed.get(wanted.id)
        assert (shares is None) == (not possible)
        if shares is None:
            continue
        assert len(shares) == len(possible[0])
        places = {of[share.node].place for share in shares}
        if any(len({offer.place for offer in chosen}) == 1 for chosen in possible):
            assert len(places) == 1
        if any(len({offer.place[0] for offer in chosen}) == 1 for chosen in possible):
            assert len({block for block, _ in places}) == 1


def test_locality_never_costs_a_node() -> None:
    small = [labeled(f"s{i}", 2, block="b1") for i in range(4)]
    large = [labeled("x", 4, block="b2"), labeled("y", 4, block="b3")]
    assert nodes_of(decide([job("j", 8)], [*small, *large]), "j") == {"x": 4, "y": 4}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"node_selector": (("rack", "r9"), ("zone", "a"))},
            "needs 2 slots; no node that is online has the labels rack=r9,zone=a",
        ),
        (
            {"node_selector": (("zone", "a"),), "device": "cuda"},
            "needs 2 cuda slots; no node that is online has cuda slots",
        ),
        (
            {"exclude_nodes": ("a", "b")},
            "needs 2 slots; no node that is online is not in resources.exclude_nodes",
        ),
        (
            {"node_selector": (("zone", "a"),), "exclude_nodes": ("a",)},
            "needs 2 slots; no node that is online has the labels zone=a and is not in "
            "resources.exclude_nodes",
        ),
    ],
)
def test_the_reason_names_what_no_node_has(more: dict[str, object], reason: str) -> None:
    offers = [labeled("a", 2, zone="a"), labeled("b", 2, zone="b")]
    assert decide([job("j", 2, **more)], offers).waiting["j"] == reason


def test_a_job_that_no_node_suits_keeps_no_slot_from_others() -> None:
    picky, other = job("p", 2, node_selector=(("zone", "z"),)), job("o", 2)
    assert set(decide([picky, other], [labeled("a", 2)]).placed) == {"o"}


def test_two_fabrics_do_not_hold_one_job() -> None:
    offers = [labeled("a", 2, fabric="x"), labeled("b", 2, fabric="y")]
    assert decide([job("j", 4)], offers).waiting["j"] == "needs 4 slots, 2 are online"

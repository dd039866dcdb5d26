"""Placement as a pure function: within capacity, all or nothing, and in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given

from server.cluster.placement.decide import decide
from server.cluster.placement.demand import Offer, QueuedJob
from server.cluster.placement.fit import fits, groups
from tests.server.cluster.placement.cluster import (
    ROOTS,
    job,
    jobs_strategy,
    nodes_of,
    offer,
    offers_strategy,
    unit_of,
)


@given(jobs_strategy, offers_strategy)
def test_what_is_placed_is_whole_and_was_free(
    jobs: Sequence[QueuedJob], offers: Sequence[Offer]
) -> None:
    decisions = decide(jobs, offers)
    by_name = {o.node: o for o in offers}
    assert decisions.placed.keys() | decisions.waiting.keys() == {d.id for d in jobs}
    assert not decisions.placed.keys() & decisions.waiting.keys()
    given_away = [
        (share.node, slot)
        for shares in decisions.placed.values()
        for share in shares
        for slot in share.slots
    ]
    assert len(given_away) == len(set(given_away)), "no slot twice"
    assert all(slot in by_name[node].free for node, slot in given_away)
    for wanted in jobs:
        needs, shares = wanted.demand, decisions.placed.get(wanted.id)
        if shares is None:
            assert decisions.waiting[wanted.id]
            continue
        used = [by_name[share.node] for share in shares]
        assert sum(len(share.slots) for share in shares) == needs.slots
        sizes = [len(share.slots) for share in shares]
        assert sizes == sorted(sizes, reverse=True)
        (unit,) = {unit_of(needs, g) for g in groups(needs, offers) if used[0] in g}
        assert all(size % unit == 0 for size in sizes)
        even = len(set(sizes)) == 1
        assert even or needs.nodes is None
        assert len({o.device for o in used}) == 1
        assert len({o.roots["checkpoints"] for o in used}) == 1
        assert needs.nodes in {None, len(shares) - needs.spare_nodes}
        assert needs.device in {"auto", used[0].device}
        assert needs.storage is None or used[0].roots["checkpoints"] == needs.storage[1]
        assert [share.node_rank for share in shares] == list(range(len(shares)))


@given(jobs_strategy, offers_strategy)
def test_who_is_behind_changes_nothing_for_who_is_ahead(
    jobs: Sequence[QueuedJob], offers: Sequence[Offer]
) -> None:
    whole = decide(jobs, offers)
    for count in range(len(jobs)):
        part = decide(jobs[:count], offers)
        assert all(whole.placed.get(key) == shares for key, shares in part.placed.items())
        assert all(whole.waiting[key] == reason for key, reason in part.waiting.items())


@given(jobs_strategy, offers_strategy)
def test_the_first_is_placed_exactly_when_it_fits(
    jobs: Sequence[QueuedJob], offers: Sequence[Offer]
) -> None:
    placed = decide(jobs, offers).placed
    assert all((d.id in placed) == fits(d.demand, offers) for d in jobs[:1])


@given(jobs_strategy, offers_strategy)
def test_a_large_job_is_not_overtaken_on_its_nodes(
    jobs: Sequence[QueuedJob], offers: Sequence[Offer]
) -> None:
    large = job("large", 16, nodes=1, device="cpu")
    cluster = [*offers, offer("big", 16, 15)]
    used = {
        share.node for shares in decide([large, *jobs], cluster).placed.values() for share in shares
    }
    kept = {o.node for o in cluster if o.device == "cpu" and o.roots == ROOTS}
    assert not used & kept


@given(jobs_strategy, offers_strategy)
def test_one_reason_a_demand_and_none_behind_it_starts(
    jobs: Sequence[QueuedJob], offers: Sequence[Offer]
) -> None:
    decisions = decide(jobs, offers)
    failed: dict[object, str] = {}
    for wanted in jobs:
        if wanted.demand in failed:
            assert decisions.waiting[wanted.id] == failed[wanted.demand]
        elif wanted.id in decisions.waiting:
            failed[wanted.demand] = decisions.waiting[wanted.id]


@given(jobs_strategy, offers_strategy)
def test_jobs_of_a_demand_that_failed_can_be_left_out(
    jobs: Sequence[QueuedJob], offers: Sequence[Offer]
) -> None:
    whole = decide(jobs, offers)
    first = {d.demand: d.id for d in reversed(jobs) if d.id in whole.waiting}
    left = [d for d in jobs if d.id in {*whole.placed, *first.values()}]
    assert decide(left, offers).placed == whole.placed


def test_nothing_overtakes_a_job_that_was_left_out() -> None:
    ahead, behind = [job("a1", 1), job("a2", 1)], job("b", 2)
    offers = [offer("n", 8)]
    cut = decide([*ahead, behind], offers, cut={"a2"})
    assert list(cut.placed) == ["a1", "a2"]
    assert cut.waiting == {}
    assert list(decide([*ahead, behind], offers).placed) == ["a1", "a2", "b"]
    assert list(decide([*ahead, behind], offers, cut={"b"}).placed) == ["a1", "a2", "b"]
    full = [offer("n", 8, 1)]  # the demand fails before its last node: no omitted node fits
    kept = decide([*ahead, job("c", 9)], full, cut={"a2"})
    assert list(kept.placed) == ["a1"]
    assert set(kept.waiting) == {"a2", "c"}


def test_a_demand_is_all_that_decides_where_a_job_fits() -> None:
    same = [job("a", 2, nodes=1), job("b", 2, nodes=1)]
    assert same[0].demand == same[1].demand
    others = [
        job("c", 3, nodes=1),
        job("d", 2),
        job("e", 2, nodes=1, device="cpu"),
        job("f", 2, nodes=1, roots=("data",)),
        job("g", 2, nodes=1, storage=("checkpoints", "u")),
    ]
    assert len({one.demand for one in [*same, *others]}) == 6


def test_a_large_job_keeps_only_nodes_that_it_could_use() -> None:
    offers = [offer("a", 4, 2), offer("gpu", 4, device="cuda")]
    decisions = decide([job("large", 4, device="cpu"), job("small", 1)], offers)
    assert nodes_of(decisions, "small") == {"gpu": 1}


def test_a_job_larger_than_all_nodes_holds_back_no_other() -> None:
    decisions = decide([job("huge", 64), job("small", 1)], [offer("a", 4)])
    assert nodes_of(decisions, "small") == {"a": 1}
    assert decisions.waiting["huge"] == "needs 64 slots, 4 are online"


def test_auto_takes_the_gpus_where_there_are_any() -> None:
    offers = [offer("cpu", 8), offer("gpu", 2, 0, device="cuda")]
    decisions = decide([job("j", 2)], offers)
    assert decisions.waiting["j"] == "needs 2 slots, 0 free, 2 held by other"
    assert nodes_of(decide([job("j", 2, device="cpu")], offers), "j") == {"cpu": 2}


@pytest.mark.parametrize(
    ("wanted", "offers", "reason"),
    [
        (job("j", 4), [], "no node is online that takes new work"),
        (
            job("j", 4),
            [offer("a", 4, 2, held_by="llama-7")],
            "needs 4 slots, 2 free, 2 held by llama-7",
        ),
        (
            job("j", 5),
            [offer("a", 4, 3, held_by="x"), offer("b", 4, 1, held_by="y")],
            "needs 5 slots, 4 free (3 + 1), 3 held by y, 1 held by x",
        ),
        (job("j", 4, nodes=2), [offer("a", 8)], "needs 4 slots on 2 nodes, 8 are online"),
        (
            job("j", 1, device="cuda"),
            [offer("a", 8)],
            "needs 1 cuda slot; no node that is online has cuda slots",
        ),
        (
            job("j", 2, device="cpu", roots=("checkpoints", "data")),
            [offer("a", 8)],
            "needs 2 cpu slots; no node that is online has such slots and sees the root data",
        ),
        (
            job("j", 1, roots=("checkpoints", "data")),
            [offer("a", 8), offer("b", 8, roots={"data": "uuid-3"})],
            "needs 1 slot; no node that is online sees the roots checkpoints, data",
        ),
        (
            job("j", 1, storage=("checkpoints", "uuid-9")),
            [offer("a", 8)],
            "needs 1 slot; no node that is online sees its checkpoints",
        ),
        (
            job("j", 1, device="cpu", storage=("checkpoints", "uuid-9")),
            [offer("a", 8), offer("b", 8, device="cuda", roots={"checkpoints": "uuid-9"})],
            "needs 1 cpu slot; no node that is online has such slots and sees its checkpoints",
        ),
        (  # storage of nodes of the other kind does not count
            job("j", 1, device="cuda", roots=("checkpoints", "data")),
            [offer("a", 8, roots={"checkpoints": "u", "data": "v"}), offer("b", 8, device="cuda")],
            "needs 1 cuda slot; no node that is online has such slots and sees the root data",
        ),
        (  # of the possible storages, the one with the most free slots
            job("j", 4),
            [
                offer("a", 4, 1, held_by="x"),
                offer("b", 4, 3, roots={"checkpoints": "uuid-2"}, held_by="y"),
                offer("c", 3, 3, roots={"checkpoints": "uuid-3"}),
            ],
            "needs 4 slots, 3 free, 1 held by y",
        ),
        (  # none could
            job("j", 9),
            [
                offer("a", 8, 1),
                offer("b", 4, 2, roots={"checkpoints": "uuid-2"}),
                offer("c", 3, 2, roots={"checkpoints": "uuid-2"}),
            ],
            "needs 9 slots, 7 are online (4 + 3)",
        ),
        (
            job("j", 56),
            [offer(f"n{slots}", slots) for slots in range(1, 11)],
            "needs 56 slots, 55 are online (10 + 9 + 8 + 7 + 6 + 5 + 4 + 3 + ...)",
        ),
        (
            job("j", 512),
            [offer(f"n{number}", 8 if number else 2) for number in range(51)],
            "needs 512 slots, 402 are online (50 x 8 + 2)",
        ),
        (  # a node without a free slot does not count in the sum
            job("j", 4),
            [offer("a", 4, 0, held_by="x"), offer("b", 4, 2, held_by="y"), offer("c", 4, 1)],
            "needs 4 slots, 3 free (2 + 1), 4 held by x, 3 held by other, 2 held by y",
        ),
        (
            job("j", 8),
            [
                Offer("a", "cpu", 8, (7,), ROOTS, {"v": 1, "w": 2, "x": 1, "y": 1, "z": 2}),
            ],
            "needs 8 slots, 1 free, 2 held by w, 2 held by z, 1 held by v, 2 by others",
        ),
        (
            job("j", 4),
            [offer("a", 4, 0, held_by="x"), offer("b", 2, 0, held_by="x")],
            "needs 4 slots, 0 free, 6 held by x",
        ),
    ],
)
def test_reasons(wanted: QueuedJob, offers: list[Offer], reason: str) -> None:
    assert decide([wanted], offers).waiting["j"] == reason


def test_slots_that_are_free_and_those_that_are_kept_are_told_apart() -> None:
    """Only `a` and `b` see the data of the first two jobs; the third could go anywhere."""
    both = {**ROOTS, "data": "uuid-2"}
    offers = [
        offer("a", 4, 3, roots=both),
        offer("b", 2, 1, roots={**ROOTS, "data": "uuid-3"}),
        offer("c", 2, 1),
        offer("d", 2, 0),
    ]
    large = job("large", 4, roots=("checkpoints", "data"))
    pair = job("pair", 2, roots=("checkpoints", "data"), nodes=1)
    decisions = decide([large, pair, job("j", 2)], offers)
    assert decisions.placed == {}
    assert decisions.waiting == {
        "large": "needs 4 slots, 3 free, 1 held by other",
        "pair": "needs 2 slots on 1 node, 3 free, kept for large, which is ahead, 1 held by other",
        "j": (
            "needs 2 slots, 1 free, 3 free, kept for large, which is ahead, 1 free, kept for "
            "pair, which is ahead, 5 held by other"
        ),
    }


def test_slots_that_one_job_keeps_on_several_nodes_are_one_number() -> None:
    decisions = decide([job("large", 8), job("j", 1)], [offer("a", 4, 2), offer("b", 4, 1)])
    assert decisions.waiting["j"] == (
        "needs 1 slot, 3 free, kept for large, which is ahead, 5 held by other"
    )


def test_what_is_placed_is_held_by_its_name() -> None:
    offers = [offer("a", 4, 4), offer("b", 2, 2)]
    decisions = decide([job("one", 3), job("two", 2), job("j", 4)], offers)
    assert nodes_of(decisions, "one") == {"a": 3}
    assert nodes_of(decisions, "two") == {"b": 2}
    assert decisions.waiting["j"] == "needs 4 slots, 1 free, 3 held by one, 2 held by two"
    more = [offer("a", 4, 3, held_by="one")]
    assert decide([job("one", 1), job("j", 4)], more).waiting["j"] == (
        "needs 4 slots, 2 free, 2 held by one"
    )


def test_a_job_held_back_names_the_job_ahead() -> None:
    decisions = decide([job("large", 4), job("small", 1)], [offer("a", 4, 2)])
    assert decisions.waiting["small"] == (
        "needs 1 slot, 2 free, kept for large, which is ahead, 2 held by other"
    )


def test_parts_of_a_gpu_take_jobs_of_one_slot_only() -> None:
    divided = dataclasses.replace(offer("a", 4, device="cuda"), partitions=(0, 1))
    placed = decide([job("x", 2), job("y", 1)], [divided]).placed
    assert [share.slots for share in placed["x"]] == [(2, 3)]
    assert [share.slots for share in placed["y"]] == [(0,)]
    assert decide([job("x", 3)], [divided]).placed == {}


def test_a_job_of_several_slots_waits_for_whole_gpus_where_there_are_parts_alone() -> None:
    divided = dataclasses.replace(offer("a", 2, device="cuda"), partitions=(0, 1))
    offers = [divided, offer("cpu", 8)]
    waiting = decide([job("auto", 2), job("cuda", 2, device="cuda")], offers).waiting
    assert waiting == {
        "auto": "needs 2 slots; no node that is online has whole GPUs",
        "cuda": "needs 2 cuda slots; no node that is online has whole GPUs",
    }
    assert nodes_of(decide([job("one", 1)], offers), "one") == {"a": 1}
    assert nodes_of(decide([job("cpu", 2, device="cpu")], offers), "cpu") == {"cpu": 2}
    whole = offer("b", 2, 1, device="cuda")
    assert decide([job("auto", 2)], [*offers, whole]).waiting["auto"] == (
        "needs 2 slots, 1 free, 1 held by other"
    )

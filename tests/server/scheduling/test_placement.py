"""Placement as a pure function: never too much, all or nothing, and in its order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.nodes.capacity import Demand, Offer, fits
from server.scheduling.placement import Decisions, decide
from trainyard.protocol.attempt import NodeAllocation

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


def demand(name: str, world_size: int, **more: object) -> Demand:
    return Demand(job_id=name, name=name, world_size=world_size, **more)  # type: ignore[arg-type]


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
        offer(f"n{i}", slots, min(free, slots), device=device, roots={"checkpoints": root})
        for i, (slots, free, device, root) in enumerate(rows)
    ]
)
demands_strategy = st.lists(
    st.tuples(
        st.integers(1, 12),
        st.none() | st.integers(1, 4),
        st.sampled_from(["auto", "cpu", "cuda"]),
        st.none() | st.just(("checkpoints", "uuid-2")),
    ),
    max_size=8,
).map(
    lambda rows: [
        demand(f"j{i}", size, nodes=nodes, device=device, storage=storage)
        for i, (size, nodes, device, storage) in enumerate(rows)
    ]
)


@given(demands_strategy, offers_strategy)
def test_what_is_placed_is_whole_and_was_free(
    demands: Sequence[Demand], offers: Sequence[Offer]
) -> None:
    decisions = decide(demands, offers)
    by_name = {o.node: o for o in offers}
    assert decisions.placed.keys() | decisions.waiting.keys() == {d.job_id for d in demands}
    assert not decisions.placed.keys() & decisions.waiting.keys()
    given_away = [
        (share.node, slot)
        for shares in decisions.placed.values()
        for share in shares
        for slot in share.slots
    ]
    assert len(given_away) == len(set(given_away)), "no slot twice"
    assert all(slot in by_name[node].free for node, slot in given_away)
    for wanted in demands:
        shares = decisions.placed.get(wanted.job_id)
        if shares is None:
            assert decisions.waiting[wanted.job_id]
            continue
        used = [by_name[share.node] for share in shares]
        assert sum(len(share.slots) for share in shares) == wanted.world_size
        assert len({len(share.slots) for share in shares}) == 1, "in equal shares"
        assert len({o.device for o in used}) == 1
        assert len({o.roots["checkpoints"] for o in used}) == 1
        assert wanted.nodes in {None, len(shares)}
        assert wanted.device in {"auto", used[0].device}
        assert wanted.storage is None or used[0].roots["checkpoints"] == wanted.storage[1]
        assert [share.node_rank for share in shares] == list(range(len(shares)))


@given(demands_strategy, offers_strategy)
def test_who_is_behind_changes_nothing_for_who_is_ahead(
    demands: Sequence[Demand], offers: Sequence[Offer]
) -> None:
    whole = decide(demands, offers)
    for count in range(len(demands)):
        part = decide(demands[:count], offers)
        assert all(whole.placed.get(job) == shares for job, shares in part.placed.items())
        assert all(whole.waiting[job] == reason for job, reason in part.waiting.items())


@given(demands_strategy, offers_strategy)
def test_the_first_is_placed_exactly_when_it_fits(
    demands: Sequence[Demand], offers: Sequence[Offer]
) -> None:
    placed = decide(demands, offers).placed
    assert all((d.job_id in placed) == fits(d, offers) for d in demands[:1])


@given(demands_strategy, offers_strategy)
def test_a_large_job_is_not_overtaken_on_its_nodes(
    demands: Sequence[Demand], offers: Sequence[Offer]
) -> None:
    large = demand("large", 16, nodes=1, device="cpu")
    cluster = [*offers, offer("big", 16, 15)]
    used = {
        share.node
        for shares in decide([large, *demands], cluster).placed.values()
        for share in shares
    }
    kept = {o.node for o in cluster if o.device == "cpu" and o.roots == ROOTS}
    assert not used & kept


@given(demands_strategy, offers_strategy)
def test_one_reason_a_shape_and_none_behind_it_starts(
    demands: Sequence[Demand], offers: Sequence[Offer]
) -> None:
    decisions = decide(demands, offers)
    failed: dict[object, str] = {}
    for wanted in demands:
        if wanted.shape in failed:
            assert decisions.waiting[wanted.job_id] == failed[wanted.shape]
        elif wanted.job_id in decisions.waiting:
            failed[wanted.shape] = decisions.waiting[wanted.job_id]


@given(demands_strategy, offers_strategy)
def test_jobs_of_a_shape_that_failed_can_be_left_out(
    demands: Sequence[Demand], offers: Sequence[Offer]
) -> None:
    whole = decide(demands, offers)
    first = {d.shape: d.job_id for d in reversed(demands) if d.job_id in whole.waiting}
    left = [d for d in demands if d.job_id in {*whole.placed, *first.values()}]
    assert decide(left, offers).placed == whole.placed


def test_nothing_overtakes_a_job_that_was_left_out() -> None:
    ahead, behind = [demand("a1", 1), demand("a2", 1)], demand("b", 2)
    offers = [offer("n", 8)]
    cut = decide([*ahead, behind], offers, cut={ahead[0].shape})
    assert list(cut.placed) == ["a1", "a2"]
    assert cut.waiting == {}
    assert list(decide([*ahead, behind], offers).placed) == ["a1", "a2", "b"]
    assert list(decide([*ahead, behind], offers, cut={behind.shape}).placed) == ["a1", "a2", "b"]
    full = [offer("n", 8, 1)]  # the shape fails before its last one: none that is left out fits
    kept = decide([*ahead, demand("c", 9)], full, cut={ahead[0].shape})
    assert list(kept.placed) == ["a1"]
    assert set(kept.waiting) == {"a2", "c"}


def test_a_shape_is_all_that_decides_where_a_job_fits() -> None:
    same = [demand("a", 2, nodes=1), demand("b", 2, nodes=1)]
    assert same[0].shape == same[1].shape
    others = [
        demand("c", 3, nodes=1),
        demand("d", 2),
        demand("e", 2, nodes=1, device="cpu"),
        demand("f", 2, nodes=1, roots=("data",)),
        demand("g", 2, nodes=1, storage=("checkpoints", "u")),
    ]
    assert len({one.shape for one in [*same, *others]}) == 6


def test_a_large_job_keeps_only_nodes_that_it_could_use() -> None:
    offers = [offer("a", 4, 2), offer("gpu", 4, device="cuda")]
    decisions = decide([demand("large", 4, device="cpu"), demand("small", 1)], offers)
    assert nodes_of(decisions, "small") == {"gpu": 1}


def test_a_job_larger_than_all_nodes_holds_back_no_other() -> None:
    decisions = decide([demand("huge", 64), demand("small", 1)], [offer("a", 4)])
    assert nodes_of(decisions, "small") == {"a": 1}
    assert decisions.waiting["huge"] == "needs 64 slots, 4 are online"


def test_the_fewest_nodes_and_the_fullest_first() -> None:
    offers = [offer("a", 4), offer("b", 4, 2), offer("c", 8)]
    assert nodes_of(decide([demand("j", 2)], offers), "j") == {"b": 2}
    assert nodes_of(decide([demand("j", 6)], offers), "j") == {"c": 6}
    assert nodes_of(decide([demand("j", 12)], [offer("a", 6), offer("b", 6)]), "j") == {
        "a": 6,
        "b": 6,
    }
    assert nodes_of(decide([demand("j", 4, nodes=2)], offers), "j") == {"b": 2, "a": 2}


def test_auto_takes_the_gpus_where_there_are_any() -> None:
    offers = [offer("cpu", 8), offer("gpu", 2, 0, device="cuda")]
    decisions = decide([demand("j", 2)], offers)
    assert decisions.waiting["j"] == "needs 2 slots, 0 free, 2 held by other"
    assert nodes_of(decide([demand("j", 2, device="cpu")], offers), "j") == {"cpu": 2}


@pytest.mark.parametrize(
    ("wanted", "offers", "reason"),
    [
        (demand("j", 4), [], "no node is online that takes new work"),
        (
            demand("j", 4),
            [offer("a", 4, 2, held_by="llama-7")],
            "needs 4 slots, 2 free, 2 held by llama-7",
        ),
        (
            demand("j", 4),
            [offer("a", 4, 3, held_by="x"), offer("b", 4, 1, held_by="y")],
            "needs 4 slots, 4 free (3 + 1), 3 held by y, 1 held by x",
        ),
        (demand("j", 4, nodes=2), [offer("a", 8)], "needs 4 slots on 2 nodes, 8 are online"),
        (
            demand("j", 1, device="cuda"),
            [offer("a", 8)],
            "needs 1 cuda slot; no node that is online has cuda slots",
        ),
        (
            demand("j", 2, device="cpu", roots=("checkpoints", "data")),
            [offer("a", 8)],
            "needs 2 cpu slots; no node that is online has such slots and sees the root data",
        ),
        (
            demand("j", 1, roots=("checkpoints", "data")),
            [offer("a", 8), offer("b", 8, roots={"data": "uuid-3"})],
            "needs 1 slot; no node that is online sees the roots checkpoints, data",
        ),
        (
            demand("j", 1, storage=("checkpoints", "uuid-9")),
            [offer("a", 8)],
            "needs 1 slot; no node that is online sees its checkpoints",
        ),
        (
            demand("j", 1, device="cpu", storage=("checkpoints", "uuid-9")),
            [offer("a", 8), offer("b", 8, device="cuda", roots={"checkpoints": "uuid-9"})],
            "needs 1 cpu slot; no node that is online has such slots and sees its checkpoints",
        ),
        (  # what nodes of the other kind see does not count
            demand("j", 1, device="cuda", roots=("checkpoints", "data")),
            [offer("a", 8, roots={"checkpoints": "u", "data": "v"}), offer("b", 8, device="cuda")],
            "needs 1 cuda slot; no node that is online has such slots and sees the root data",
        ),
        (  # of storages that could hold the job, that with the most free slots
            demand("j", 4),
            [
                offer("a", 4, 1, held_by="x"),
                offer("b", 4, 3, roots={"checkpoints": "uuid-2"}, held_by="y"),
                offer("c", 3, 3, roots={"checkpoints": "uuid-3"}),
            ],
            "needs 4 slots, 3 free, 1 held by y",
        ),
        (  # none could
            demand("j", 9),
            [
                offer("a", 8, 1),
                offer("b", 4, 2, roots={"checkpoints": "uuid-2"}),
                offer("c", 3, 2, roots={"checkpoints": "uuid-2"}),
            ],
            "needs 9 slots, 7 are online (4 + 3)",
        ),
        (
            demand("j", 23),
            [offer(f"n{slots}", slots) for slots in range(1, 11)],
            "needs 23 slots, 55 are online (10 + 9 + 8 + 7 + 6 + 5 + 4 + 3)",
        ),
        (  # a node without a free slot is no part of the sum
            demand("j", 4),
            [offer("a", 4, 0, held_by="x"), offer("b", 4, 2, held_by="y"), offer("c", 4, 1)],
            "needs 4 slots, 3 free (2 + 1), 4 held by x, 3 held by other, 2 held by y",
        ),
        (
            demand("j", 8),
            [
                Offer("a", "cpu", 8, (7,), ROOTS, {"v": 1, "w": 2, "x": 1, "y": 1, "z": 2}),
            ],
            "needs 8 slots, 1 free, 2 held by w, 2 held by z, 1 held by v, 2 by others",
        ),
        (
            demand("j", 4),
            [offer("a", 4, 0, held_by="x"), offer("b", 2, 0, held_by="x")],
            "needs 4 slots, 0 free, 6 held by x",
        ),
    ],
)
def test_reasons(wanted: Demand, offers: list[Offer], reason: str) -> None:
    assert decide([wanted], offers).waiting["j"] == reason


def test_slots_that_are_free_and_those_that_are_kept_are_told_apart() -> None:
    """Only `a` and `b` see the data that the first two jobs need; the third could go anywhere."""
    both = {**ROOTS, "data": "uuid-2"}
    offers = [
        offer("a", 4, 3, roots=both),
        offer("b", 2, 1, roots={**ROOTS, "data": "uuid-3"}),
        offer("c", 2, 1),
        offer("d", 2, 0),
    ]
    large = demand("large", 4, roots=("checkpoints", "data"))
    pair = demand("pair", 2, roots=("checkpoints", "data"), nodes=1)
    decisions = decide([large, pair, demand("j", 2)], offers)
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
    decisions = decide([demand("large", 8), demand("j", 1)], [offer("a", 4, 2), offer("b", 4, 1)])
    assert decisions.waiting["j"] == (
        "needs 1 slot, 3 free, kept for large, which is ahead, 5 held by other"
    )


def test_what_is_placed_is_held_by_its_name() -> None:
    offers = [offer("a", 4, 4), offer("b", 2, 2)]
    decisions = decide([demand("one", 3), demand("two", 2), demand("j", 4)], offers)
    assert nodes_of(decisions, "one") == {"a": 3}
    assert nodes_of(decisions, "two") == {"b": 2}
    assert decisions.waiting["j"] == "needs 4 slots, 1 free, 3 held by one, 2 held by two"
    more = [offer("a", 4, 3, held_by="one")]
    assert decide([demand("one", 1), demand("j", 4)], more).waiting["j"] == (
        "needs 4 slots, 2 free, 2 held by one"
    )


def test_slots_are_taken_from_the_front_and_ranks_follow_the_names() -> None:
    offers = [offer("b", 4, 3), offer("a", 4, 2)]
    first, second = demand("first", 4, nodes=2), demand("second", 1)
    placed = decide([first, second], offers).placed
    assert placed["first"] == (
        NodeAllocation(node="a", node_rank=0, slots=(2, 3)),
        NodeAllocation(node="b", node_rank=1, slots=(1, 2)),
    )
    assert placed["second"] == (NodeAllocation(node="b", node_rank=0, slots=(3,)),)


def test_of_equal_storages_the_fuller_one_is_taken() -> None:
    other = {"checkpoints": "uuid-0"}
    offers = [offer("a", 4, 4, roots=other), offer("b", 4, 3), offer("c", 4, 2), offer("d", 4, 2)]
    assert nodes_of(decide([demand("j", 2)], offers), "j") == {"c": 2}
    assert nodes_of(decide([demand("j", 4)], offers), "j") == {"a": 4}
    spread = [offer("a", 2, roots=other), offer("b", 2, roots=other), offer("c", 8, 6)]
    assert nodes_of(decide([demand("j", 4)], spread), "j") == {"c": 4}


def test_nodes_of_several_kinds_and_storages_are_never_mixed() -> None:
    offers = [
        offer("a", 2, roots={"checkpoints": "u", "data": "v"}),
        offer("b", 2, roots={"checkpoints": "u", "data": "w"}),
        offer("c", 2, device="cuda", roots={"checkpoints": "u", "data": "v"}),
    ]
    both = ("checkpoints", "data")
    assert not fits(demand("j", 4, device="cpu", roots=both), offers)
    assert fits(demand("j", 4, device="cpu"), offers)
    assert fits(demand("j", 2, roots=both, storage=("data", "v")), offers)
    assert not fits(demand("j", 2, device="cpu", roots=both, storage=("data", "x")), offers)
    assert not fits(demand("j", 3, device="cpu"), offers), "not in equal shares"


def test_a_job_held_back_names_the_job_ahead() -> None:
    decisions = decide([demand("large", 4), demand("small", 1)], [offer("a", 4, 2)])
    assert decisions.waiting["small"] == (
        "needs 1 slot, 2 free, kept for large, which is ahead, 2 held by other"
    )

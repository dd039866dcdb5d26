"""Preemption as a pure function: who leaves for a waiting job of higher priority."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from server.cluster.placement import preempt
from server.cluster.placement.decide import Decisions, decide
from server.cluster.placement.demand import LEAVES_WITHIN, Holding, Offer, QueuedJob
from server.cluster.placement.fit import fits
from tests.server.cluster.placement.cluster import job, offer, withholding

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AFTER = timedelta(minutes=10)


def running(name: str, priority: int, minutes: float | None, **shares: Sequence[int]) -> Holding:
    """Return an attempt whose first step was a number of minutes ago."""
    since = None if minutes is None else NOW - timedelta(minutes=minutes)
    slots = {node: tuple(indices) for node, indices in shares.items()}
    return Holding(slots, None, name, name, priority, since)


def decided(jobs: Sequence[QueuedJob], nodes: Sequence[Offer], *held: Holding) -> Decisions:
    offers = without(nodes, held)
    return decide(jobs, offers, holdings=held, now=NOW, preempt_after=AFTER)


def without(nodes: Sequence[Offer], held: Collection[Holding]) -> list[Offer]:
    """Return nodes with the slots that the holdings leave free."""
    taken = {(node, slot) for h in held for node, slots in h.shares.items() for slot in slots}
    return [
        replace(o, free=tuple(s for s in sorted(o.indices) if (o.node, s) not in taken))
        for o in nodes
    ]


def victims_of(found: Decisions, job_id: str) -> list[str]:
    return sorted(holding.attempt_id for holding in found.victims.get(job_id, ()))


def high(world_size: int, **more: object) -> QueuedJob:
    return replace(job("high", world_size, **more), priority=50)


A = [offer("a", 4)]


def test_the_lowest_priority_leaves_then_the_smallest_then_the_one_that_started_last() -> None:
    low = running("low", -50, 60, a=[0, 1])
    found = decided([high(2)], A, low, running("normal", 0, 60, a=[2, 3]))
    assert victims_of(found, "high") == ["low"]
    nodes = [offer("a", 4), offer("b", 4)]
    large, small = running("large", 0, 60, a=[0, 1, 2, 3]), running("small", 0, 60, b=[0, 1])
    rest = running("rest", 50, 60, b=[2, 3])
    assert victims_of(decided([high(2)], nodes, large, small, rest), "high") == ["small"]
    first, last = running("first", 0, 60, a=[0, 1]), running("last", 0, 30, a=[2, 3])
    assert victims_of(decided([high(2)], A, first, last), "high") == ["last"]


def test_one_attempt_leaves_rather_than_two_of_lower_priority() -> None:
    held = [
        running("low-1", -50, 60, a=[0]),
        running("low-2", -50, 60, a=[1]),
        running("normal", 0, 60, a=[2, 3]),
    ]
    assert victims_of(decided([high(2)], A, *held), "high") == ["normal"]


def test_equal_priorities_and_those_that_began_lately_stay() -> None:
    for stays in (
        running("equal", 50, 60, a=[0, 1, 2, 3]),
        running("late", 0, 9.9, a=[0, 1, 2, 3]),
        running("starting", 0, None, a=[0, 1, 2, 3]),
    ):
        assert decided([high(4)], A, stays).victims == {}
    assert victims_of(decided([high(4)], A, running("x", 0, 10, a=[0, 1, 2, 3])), "high") == ["x"]


def test_nothing_leaves_without_the_setting_or_for_a_job_that_would_not_fit() -> None:
    held = [running("low", 0, 60, a=[0, 1]), running("other", 50, 60, a=[2])]
    offers = without(A, held)
    assert decide([high(3)], offers, holdings=held, now=NOW).victims == {}
    assert decided([high(4)], A, *held).victims == {}, "the other one stays"
    assert decided([high(8)], A, *held).victims == {}, "larger than all nodes"


def test_attempts_that_leave_already_count_as_gone() -> None:
    leaving = replace(running("leaving", 0, 60, a=[0, 1]), ends_at=NOW + LEAVES_WITHIN)
    other = running("other", 0, 60, a=[2, 3])
    assert decided([high(2)], A, leaving, other).victims == {}
    assert victims_of(decided([high(4)], A, leaving, other), "high") == ["other"]


def test_a_job_behind_preempts_only_on_nodes_that_none_ahead_keeps() -> None:
    nodes = [offer("a", 2), offer("b", 2, roots={"checkpoints": "uuid-2"})]
    held = [running("x", 0, 60, a=[0, 1]), running("y", 0, 60, b=[0, 1])]
    first = high(2, storage=("checkpoints", "uuid-1"))
    second = replace(job("second", 1), priority=40)
    found = decided([first, second], nodes, *held)
    assert (victims_of(found, "high"), victims_of(found, "second")) == (["x"], ["y"])
    assert list(decided([high(2), second], nodes, *held).victims) == ["high"]


def test_an_attempt_behind_a_withheld_slot_frees_all_of_its_slots() -> None:
    node = withholding(offer("a", 4), 0)
    found = decided([high(3)], [node], running("low", 0, 60, a=[1, 2, 3]))
    assert victims_of(found, "high") == ["low"]


def test_nothing_is_backfilled_where_attempts_leave() -> None:
    held = running("low", 0, 60, a=[0, 1])
    short = replace(job("short", 1), lasts=timedelta(minutes=5))
    found = decided([high(4), short], A, held)
    assert victims_of(found, "high") == ["low"]
    assert found.placed == {}


ATTEMPTS = st.lists(
    st.tuples(
        st.sampled_from([-50, 0, 0, 49, 50, 60]),
        st.sampled_from([None, 5, 10, 20, 60]),
        st.dictionaries(st.integers(0, 3), st.integers(1, 3), min_size=1, max_size=2),
        st.booleans(),
    ),
    max_size=7,
)
DEMANDS = st.tuples(
    st.integers(1, 10), st.sampled_from([None, None, 1, 2]), st.sampled_from([(), (2,), (4, 2)])
)


@st.composite
def situations(draw: st.DrawFn) -> tuple[QueuedJob, list[Offer], list[Holding]]:
    """Return a waiting job, four nodes of three or four slots, and attempts on them."""
    rows = draw(ATTEMPTS)
    nodes = [offer(f"n{number}", 4) for number in range(4)]
    nodes[:2] = [withholding(nodes[0], 0), withholding(nodes[1], 2)]
    left = {node.node: sorted(node.indices) for node in nodes}
    held = []
    for number, (priority, minutes, wanted, leaves) in enumerate(rows):
        shares = {
            f"n{node}": [left[f"n{node}"].pop() for _ in range(min(count, len(left[f"n{node}"])))]
            for node, count in wanted.items()
        }
        shares = {node: slots for node, slots in shares.items() if slots}
        if shares:
            one = running(f"j{number}", priority, minutes, **shares)
            held.append(replace(one, ends_at=NOW) if leaves and number % 3 == 0 else one)
    size, count, units = draw(DEMANDS)
    waits = high(size * max(units, default=1), nodes=count, units=units)
    return waits, nodes, held


@given(situations())
def test_the_fewest_attempts_leave_and_the_job_fits_without_them(
    situation: tuple[QueuedJob, list[Offer], list[Holding]],
) -> None:
    waits, nodes, held = situation
    found = decided([waits], nodes, *held)
    chosen = list(found.victims.get("high", ()))
    may_leave = [
        h
        for h in held
        if h.ends_at is None
        and h.priority < waits.priority
        and h.first_step_at is not None
        and h.first_step_at <= NOW - AFTER
    ]
    assert all(victim in may_leave for victim in chosen)
    stay = [h for h in held if h.ends_at is None]
    sufficient = [
        count
        for count in range(len(may_leave) + 1)
        for leaving in combinations(may_leave, count)
        if fits(waits.demand, without(nodes, [h for h in stay if h not in leaving]))
    ]
    if chosen:
        assert fits(waits.demand, without(nodes, [h for h in stay if h not in chosen]))
    starts = "high" in found.placed
    assert len(chosen) == (0 if starts else min(sufficient, default=0))


@given(situations())
def test_in_a_large_cluster_none_leaves_that_is_not_needed(
    situation: tuple[QueuedJob, list[Offer], list[Holding]],
) -> None:
    """With too many sets to compare, every chosen attempt is still necessary."""
    waits, nodes, held = situation
    most, preempt.MAX_SETS = preempt.MAX_SETS, 0
    try:
        chosen = list(decided([waits], nodes, *held).victims.get("high", ()))
    finally:
        preempt.MAX_SETS = most
    stay = [h for h in held if h.ends_at is None]
    for spared in chosen:
        left = [h for h in stay if h not in chosen or h is spared]
        assert not fits(waits.demand, without(nodes, left))


def minute(number: int) -> datetime:
    return NOW + timedelta(minutes=number)


OVERTOOK = Holding(
    *({"a": (0,)}, None, "x.a1", "x"), overtook_at=minute(5), queued_at=minute(2), tag=3.0
)
"""An attempt that was queued at minute 2 and backfilled at minute 5."""


def test_what_overtook_gives_way_to_jobs_that_are_ahead_of_it() -> None:
    rows = [(1, 0, True), (2, 0, True), (3, 0, False), (3, 1, True), (6, 1, False), (1, -1, False)]
    for queued, priority, expected in rows:
        one = replace(job("one", 4), queued_at=minute(queued), priority=priority)
        assert OVERTOOK.gives_way_to(one) is expected, (queued, priority)
        assert not replace(OVERTOOK, overtook_at=None).gives_way_to(one)


def test_of_another_project_it_gives_way_by_fair_share() -> None:
    rows = [(1, 2.9, True), (4, 2.9, True), (6, 2.9, False), (1, 3.1, False)]
    for queued, tag, expected in [*rows, (1, 3.0, True), (3, 3.0, False)]:
        one = replace(job("one", 4), queued_at=minute(queued), project="team", tag=tag)
        assert OVERTOOK.gives_way_to(one) is expected, (queued, tag)
        assert OVERTOOK.gives_way_to(replace(one, project="default")) is (queued < 2)

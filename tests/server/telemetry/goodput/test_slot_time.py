"""Slot-time as a function: exact sums for any holdings and any changes of capacity."""

from __future__ import annotations

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from server.telemetry.goodput.ledger import Interval
from server.telemetry.goodput.slot_time import DAY, CapacityChange, Held, add, spread, total, unheld
from trainyard.protocol.goodput import TimeCategory

Use = Literal[TimeCategory.IDLE, TimeCategory.DRAINED, TimeCategory.OFFLINE]
USES: tuple[Use, ...] = (TimeCategory.IDLE, TimeCategory.DRAINED, TimeCategory.OFFLINE)
END = 3 * DAY


def test_slots_of_a_node_that_joins_drains_and_vanishes() -> None:
    capacity = [
        CapacityChange("a", 1_000, 4, TimeCategory.IDLE),
        CapacityChange("a", 5_000, 4, TimeCategory.DRAINED),
        CapacityChange("a", 8_000, 2, TimeCategory.OFFLINE),
    ]
    held = [Held("a", 3, 2_000, 6_000)]
    assert total(unheld(capacity, held, start=0, end=10_000)) == {
        TimeCategory.IDLE: 4 * 1_000 + 1 * 3_000,
        TimeCategory.DRAINED: 1 * 1_000 + 4 * 2_000,
        TimeCategory.OFFLINE: 2 * 2_000,
    }


def test_withheld_slots_count_while_the_node_takes_jobs_and_no_share_holds_them() -> None:
    capacity = [
        CapacityChange("a", 0, 4, TimeCategory.IDLE, withheld=2),
        CapacityChange("a", 3_000, 4, TimeCategory.DRAINED, withheld=2),
    ]
    held = [Held("a", 3, 1_000, 2_000)]
    assert total(unheld(capacity, held, start=0, end=4_000)) == {
        TimeCategory.IDLE: 2 * 2_000,
        TimeCategory.WITHHELD: 2 * 1_000 + 1 * 1_000 + 2 * 1_000,
        TimeCategory.DRAINED: 4 * 1_000,
    }


def test_a_stretch_of_the_time_has_what_lies_in_it() -> None:
    capacity = [CapacityChange("a", 0, 2, TimeCategory.IDLE)]
    held = [Held("a", 1, 0, 4_000)]
    found = unheld(capacity, held, start=DAY - 1_000, end=DAY + 500)
    assert found == {0: {TimeCategory.IDLE: 2_000}, 1: {TimeCategory.IDLE: 1_000}}


def test_a_share_has_the_categories_of_its_attempt_and_other_for_the_rest() -> None:
    intervals = [
        Interval(0, 2_000, ((TimeCategory.STARTUP, 2_000),), 1),
        Interval(
            2_000, 6_000, ((TimeCategory.PRODUCTIVE, 3_000), (TimeCategory.SAVE_STALL, 1_000)), 1
        ),
    ]
    held = Held("a", 2, 1_000, 7_000)
    assert spread(intervals, held, start=0, end=DAY) == {
        0: {
            TimeCategory.STARTUP: 2 * 1_000,
            TimeCategory.PRODUCTIVE: 2 * 3_000,
            TimeCategory.SAVE_STALL: 2 * 1_000,
            TimeCategory.OTHER: 2 * 1_000,
        }
    }


@given(
    parts=st.lists(st.integers(0, DAY), min_size=1, max_size=len(TimeCategory)),
    first=st.integers(0, 2 * DAY),
    length=st.integers(0, 2 * DAY),
)
def test_any_cut_of_an_interval_sums_to_its_length(
    parts: list[int], first: int, length: int
) -> None:
    whole = sum(parts)
    categories = tuple(zip(TimeCategory, parts, strict=False))
    interval = Interval(0, whole, categories)
    cut = dict(interval.within(first, first + length))
    assert all(time > 0 for time in cut.values())
    assert sum(cut.values()) == max(min(first + length, whole) - first, 0)
    assert dict(interval.within(0, whole)) == {c: time for c, time in categories if time}


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[CapacityChange], list[Held]]:
    """Nodes with changes, and shares that hold no more slots than their node has."""
    capacity, held = [], []
    for node in ("a", "b")[: draw(st.integers(1, 2))]:
        slots = draw(st.integers(1, 4))
        moments = sorted(draw(st.sets(st.integers(0, END), min_size=1, max_size=4)))
        capacity += [
            CapacityChange(node, at, slots, draw(st.sampled_from(USES)), draw(st.integers(0, 5)))
            for at in moments
        ]
        for _ in range(slots):
            at = moments[0]
            for gap, length in draw(st.lists(st.tuples(*[st.integers(0, DAY)] * 2), max_size=3)):
                held.append(Held(node, 1, at + gap, at + gap + length))
                at += gap + length
    return capacity, held


@given(cluster=clusters(), start=st.integers(0, END), length=st.integers(0, END))
def test_held_and_unheld_slot_time_is_all_slot_time(
    cluster: tuple[list[CapacityChange], list[Held]], start: int, length: int
) -> None:
    capacity, held = cluster
    end = start + length
    found = unheld(capacity, held, start=start, end=end)
    for share in held:
        add(found, spread((), share, start=start, end=end))
    joined: dict[str, CapacityChange] = {}
    for change in capacity:
        joined.setdefault(change.node, change)
    whole = sum(each.slots * max(end - max(each.since, start), 0) for each in joined.values())
    assert total(found).total() == whole
    for day, spent in found.items():
        assert min(spent.values()) >= 0
        inside = sum(
            each.slots * max(min(end, (day + 1) * DAY) - max(each.since, start, day * DAY), 0)
            for each in joined.values()
        )
        assert spent.total() == inside

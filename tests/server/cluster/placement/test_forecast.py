"""Expected starts as a pure function of known ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from server.cluster.placement.decide import decide
from server.cluster.placement.demand import Demand, Holding, Offer, QueuedJob
from server.cluster.placement.fit import fits
from server.cluster.placement.forecast import (
    FORECAST_ENDS,
    NOT_SOON,
    TOO_LARGE,
    UNKNOWN_END,
    forecast,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROOTS = {"checkpoints": "uuid-1"}


def after(minutes: float) -> datetime:
    return NOW + timedelta(minutes=minutes)


def job(name: str, world_size: int) -> QueuedJob:
    return QueuedJob(name, name, Demand(world_size))


def cluster(*nodes: Sequence[float | None]) -> tuple[list[Offer], list[Holding]]:
    """Return nodes; each slot is free (0) or held for a number of minutes from now."""
    offers, holdings = [], []
    for number, slots in enumerate(nodes):
        name = f"n{number}"
        free = tuple(slot for slot, minutes in enumerate(slots) if minutes == 0)
        offers.append(Offer(name, "cpu", len(slots), free, ROOTS))
        holdings += [
            Holding({name: (slot,)}, None if minutes is None else after(minutes))
            for slot, minutes in enumerate(slots)
            if minutes != 0
        ]
    return offers, holdings


held = st.none() | st.integers(0, 5)
clusters = st.lists(st.lists(held, min_size=1, max_size=4), max_size=4)
queues = st.lists(st.integers(1, 6), max_size=8).map(
    lambda sizes: [job(f"j{number}", size) for number, size in enumerate(sizes)]
)


@given(queues, clusters)
def test_each_job_starts_or_has_a_reason_why_no_start_is_known(
    jobs: Sequence[QueuedJob], nodes: list[list[float | None]]
) -> None:
    offers, holdings = cluster(*nodes)
    found = forecast(jobs, offers, holdings, now=NOW)
    assert found.starts.keys() | found.unknown.keys() == {one.id for one in jobs}
    assert not found.starts.keys() & found.unknown.keys()
    decisions = decide(jobs, offers)
    now = {one for one, start in found.starts.items() if start == NOW}
    assert now == decisions.placed.keys(), "those of this round, and no other"
    assert found.waiting == decisions.waiting
    empty = [replace(offer, free=tuple(range(offer.slots))) for offer in offers]
    for one in jobs:
        too_large = found.unknown.get(one.id) == TOO_LARGE
        assert too_large == (not fits(one.demand, empty))


@given(queues, clusters)
def test_jobs_of_a_demand_start_in_their_order(
    jobs: Sequence[QueuedJob], nodes: list[list[float | None]]
) -> None:
    offers, holdings = cluster(*nodes)
    starts = forecast(jobs, offers, holdings, now=NOW).starts
    for demand in {one.demand for one in jobs}:
        equal = [starts.get(one.id) for one in jobs if one.demand == demand]
        known = [start for start in equal if start is not None]
        assert known == sorted(known)
        assert equal == [*known, *[None] * (len(equal) - len(known))]


@given(queues, clusters)
def test_no_more_slots_are_promised_than_are_free_by_then(
    jobs: Sequence[QueuedJob], nodes: list[list[float | None]]
) -> None:
    offers, holdings = cluster(*nodes)
    starts = forecast(jobs, offers, holdings, now=NOW).starts
    for moment in set(starts.values()):
        free = sum(len(offer.free) for offer in offers)
        free += sum(
            len(slots)
            for held in holdings
            if held.ends_at and held.ends_at <= moment
            for slots in held.shares.values()
        )
        started = [one for one in jobs if one.id in starts and starts[one.id] <= moment]
        assert sum(one.demand.world_size for one in started) <= free


@given(queues, clusters)
def test_who_is_behind_changes_no_expected_start(
    jobs: Sequence[QueuedJob], nodes: list[list[float | None]]
) -> None:
    offers, holdings = cluster(*nodes)
    whole = forecast(jobs, offers, holdings, now=NOW).starts
    for count in range(len(jobs)):
        part = forecast(jobs[:count], offers, holdings, now=NOW).starts
        assert part == {one.id: whole[one.id] for one in jobs[:count] if one.id in whole}


def test_a_job_starts_when_the_last_slot_that_it_needs_is_free() -> None:
    offers, holdings = cluster([0, 10, 30, None])
    found = forecast([job("pair", 2), job("one", 1), job("all", 4)], offers, holdings, now=NOW)
    assert found.starts == {"pair": after(10), "one": after(30)}
    assert found.unknown == {"all": UNKNOWN_END}


def test_a_duration_on_another_kind_of_slot_makes_no_expected_end() -> None:
    offers, _ = cluster([0])
    for device, starts in (("cpu", {"first": NOW, "next": after(5)}), ("cuda", {"first": NOW})):
        first = replace(job("first", 1), lasts=timedelta(minutes=5), lasts_on=device)
        assert forecast([first, job("next", 1)], offers, [], now=NOW).starts == starts


def test_an_end_that_is_overdue_counts_as_now() -> None:
    offers, holdings = cluster([-5])
    assert forecast([job("j", 1)], offers, holdings, now=NOW).starts == {"j": NOW}


def test_ends_beyond_the_bound_are_not_looked_at() -> None:
    ends = [float(minute) for minute in range(1, FORECAST_ENDS + 3)]
    offers, holdings = cluster(ends)
    found = forecast([job("near", FORECAST_ENDS)], offers, holdings, now=NOW)
    assert found.starts == {"near": after(FORECAST_ENDS)}
    found = forecast([job("far", FORECAST_ENDS + 1)], offers, holdings, now=NOW)
    assert found.unknown == {"far": NOT_SOON}


def test_rounds_end_with_the_time_for_them() -> None:
    offers, holdings = cluster([1.0, 2.0, 3.0])
    jobs = [job("first", 1), job("second", 1), job("large", 4)]
    for rounds in range(4):
        left = iter([True] * rounds)
        found = forecast(jobs, offers, holdings, now=NOW, has_time=partial(next, left, False))
        starts = {"first": after(1), "second": after(2)}
        assert found.starts == dict(list(starts.items())[:rounds])
        assert found.waiting["first"].startswith("needs 1 slot"), "the first round is always made"
        later = NOT_SOON if rounds < 3 else UNKNOWN_END
        assert found.unknown == {
            one.id: TOO_LARGE if one.id == "large" else later
            for one in jobs
            if one.id not in found.starts
        }


def test_slots_that_a_node_gave_up_are_not_free_at_the_end_of_their_attempt() -> None:
    offers = [Offer("n0", "cpu", 2, (), ROOTS)]  # registered again with two of its four slots
    holdings = [Holding({"n0": (0, 1, 2, 3)}, after(10))]
    found = forecast([job("pair", 2), job("other", 2)], offers, holdings, now=NOW)
    assert found.starts == {"pair": after(10)}
    assert found.unknown == {"other": UNKNOWN_END}

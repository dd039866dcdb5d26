"""Backfill leaves room for the time in which an attempt saves and leaves."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from server.cluster.placement.decide import decide
from server.cluster.placement.demand import LEAVES_WITHIN, Holding, leave_time
from tests.server.cluster.placement.cluster import job, offer
from tests.server.cluster.placement.test_backfill import (
    BOUND_AT_10,
    HEAD,
    NODE,
    NOW,
    UNTIL_10,
    decided,
    held,
    minutes,
)


def head_starts_after(bound: timedelta | None, lasts: timedelta | None, leaves: int) -> int | None:
    """Return the start, in seconds, of a head that is due at 30, with short jobs queued behind it.

    Each short job runs for its bound or expected time, and takes a number of seconds to leave when
    ordered. Like the server, a round expects that end within a minute.
    """
    head = replace(job("head", 4), queued_at=NOW)
    node, seconds = offer("a", 4), timedelta(seconds=1)
    waiting = [
        replace(job(f"b{n}", 1), bound=bound, lasts=lasts, queued_at=NOW) for n in range(300)
    ]
    running = {"long": (held(0.5, a=[0]), NOW + minutes(0.5), False)}
    for second in range(200):
        now = NOW + second * seconds
        running = {key: run for key, run in running.items() if run[1] > now}
        for key, (holding, end, is_ordered) in running.items():
            over = bound is not None and key != "long" and holding.ends_at == now
            if is_ordered or over:
                end = end if is_ordered else now + leaves * seconds
                ordered = replace(holding, ends_at=now + LEAVES_WITHIN, overtook_at=None)
                running[key] = ordered, end, True
        holdings = [holding for holding, _, _ in running.values()]
        taken = {slot for holding in holdings for slot in holding.shares["a"]}
        free = replace(node, free=tuple(slot for slot in range(4) if slot not in taken))
        found = decide(
            [head, *waiting[:8]], [free], holdings=holdings, now=now, preempt_after=minutes(10)
        )
        if "head" in found.placed:
            return second
        for victim in (each for held_by in found.victims.values() for each in held_by):
            running[victim.attempt_id] = victim, now + leaves * seconds, True
        for key, (share,) in found.placed.items():
            ends_at = now + (bound or lasts or minutes(0))
            overtook_at = now if key in found.giving_way else None
            placed = Holding({"a": share.slots}, ends_at, key, key, overtook_at=overtook_at)
            running[key] = placed, NOW + minutes(100), False
        waiting = [each for each in waiting if each.id not in found.placed]
    return None


@pytest.mark.parametrize("is_bound", [True, False], ids=["bound", "expected"])
@pytest.mark.parametrize(("seconds", "leaves"), [(5, 15), (5, 2), (20, 15), (50, 15)], ids=str)
def test_short_jobs_in_a_row_do_not_starve_the_job_ahead(
    seconds: int, leaves: int, is_bound: bool
) -> None:
    time = timedelta(seconds=seconds)
    bound, lasts = (time, None) if is_bound else (None, time)
    assert head_starts_after(bound, lasts, leaves) == 30


def test_a_bound_fits_with_the_time_to_leave() -> None:
    one = replace(job("one", 1), bound=minutes(9), preemptible=False)
    assert list(decided([HEAD, one], NODE, holdings=BOUND_AT_10).placed) == ["one"]
    slow = replace(one, leaves_within=leave_time(61))
    assert decided([HEAD, slow], NODE, holdings=BOUND_AT_10).placed == {}
    assert leave_time(None) == leave_time(5) == LEAVES_WITHIN


def test_one_with_a_bound_gives_way_where_the_start_ahead_rests_on_an_estimate() -> None:
    one = replace(job("one", 1), bound=minutes(9))
    found = decided([HEAD, one], NODE, holdings=BOUND_AT_10)
    assert (list(found.placed), found.giving_way) == (["one"], set())
    found = decided([HEAD, one], NODE, holdings=UNTIL_10)
    assert (list(found.placed), found.giving_way) == (["one"], {"one"})
    early = [replace(UNTIL_10[0], ends_by=NOW + minutes(20))]
    assert decided([HEAD, one], NODE, holdings=early).giving_way == {"one"}
    stays = replace(one, preemptible=False)
    assert decided([HEAD, stays], NODE, holdings=UNTIL_10).placed == {}
    without = decide([HEAD, one], [NODE], holdings=UNTIL_10, now=NOW)
    assert without.placed == {}, "it could not be made to give way"

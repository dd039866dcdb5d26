"""Stragglers: found soon, never from noise, and removed after recovery."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from trainer.metrics.stragglers import (
    FOUND_LINES,
    MAX_STRAGGLERS,
    NEW_STRAGGLERS,
    SERIES,
    SPANS,
    WINDOW,
    RankSeconds,
    Straggler,
    StragglerWatch,
    without_shared_wait,
)

TRANSFER = 0.02


def step_of(own: Sequence[tuple[float, float]]) -> list[RankSeconds]:
    """Return the times of a step in which all ranks wait for the slowest."""
    slowest = max(compute + data for compute, data in own)
    return [RankSeconds(c, d, slowest - c - d + TRANSFER) for c, d in own]


def watched(
    watch: StragglerWatch, lines: int, line: Callable[[int], Sequence[RankSeconds]]
) -> tuple[list[tuple[int, Straggler]], list[tuple[int, int]]]:
    """Return the found and the recovered stragglers, each with its line."""
    found, gone = [], []
    for number in range(1, lines + 1):
        new, ended = watch.add(line(number))
        found += [(number, one) for one in new]
        gone += [(number, rank) for rank in ended]
    return found, gone


def test_a_rank_that_computes_longer_is_found() -> None:
    watch = StragglerWatch([0] * 8)
    times = step_of([(1.3 if rank == 5 else 1.0, 0.0) for rank in range(8)])
    found, gone = watched(watch, 40, lambda _: times)
    ((line, straggler),) = found
    assert line == FOUND_LINES
    assert (straggler.rank, straggler.kind) == (5, "compute")
    assert straggler.factor == pytest.approx(1.3)
    assert straggler.share == pytest.approx(0.3 / (1.3 + TRANSFER))
    assert gone == []
    assert watch.ranks == [5]


def test_a_rank_that_waits_for_data_is_found() -> None:
    times = step_of([(1.0, 0.5 if rank == 0 else 0.1) for rank in range(4)])
    ((_, straggler),), _ = watched(StragglerWatch([0] * 4), WINDOW, lambda _: times)
    assert (straggler.rank, straggler.kind) == (0, "data")
    assert straggler.factor == pytest.approx(1.5 / 1.1)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_median_is_that_of_the_others(ranks: int) -> None:
    """Of two ranks the median of both would lie between them."""
    times = step_of([(1.25 if rank == 1 else 1.0, 0.0) for rank in range(ranks)])
    found, _ = watched(StragglerWatch([0] * ranks), WINDOW, lambda _: times)
    assert [one.rank for _, one in found] == [1]


def test_ranks_are_compared_with_those_of_their_stage() -> None:
    """The last stage has the head and computes longer, which is no fault."""
    roles = [0, 0, 0, 1, 1, 1]
    own = [1.0, 1.0, 1.0, 2.0, 2.0, 2.6]
    found, _ = watched(
        StragglerWatch(roles), WINDOW, lambda _: step_of([(one, 0.0) for one in own])
    )
    assert [one.rank for _, one in found] == [5]
    alone = StragglerWatch([0, 1])
    assert watched(alone, WINDOW, lambda _: step_of([(1.0, 0.0), (9.0, 0.0)])) == ([], [])


def test_a_straggler_is_gone_when_it_keeps_up_and_does_not_flicker() -> None:
    watch = StragglerWatch([0] * 4)

    def line(number: int) -> list[RankSeconds]:
        # Slow at first; then between the two factors, which is no recovery; then like the others.
        slow = 1.5 if number <= 20 else 1.15 if number <= 60 else 1.0
        return step_of([(slow if rank == 2 else 1.0, 0.0) for rank in range(4)])

    found, gone = watched(watch, 100, line)
    assert [(n, one.rank) for n, one in found] == [(FOUND_LINES, 2)]
    assert gone == [(71, 2)]
    assert watch.ranks == []


def test_a_difference_of_milliseconds_is_none() -> None:
    """Rank 0 writes the records of a tiny job."""
    times = step_of([(0.012 if rank == 0 else 0.004, 0.0) for rank in range(2)])
    assert watched(StragglerWatch([0, 0]), 100, lambda _: times) == ([], [])


# ---- false alarms and misses ---------------------------------------------------------------------


def noisy(
    rng: random.Random, *, ranks: int, slow: float = 1.0
) -> Callable[[int], list[RankSeconds]]:
    """Return lines of a job with usual disturbances; rank 3 computes `slow` times as long.

    Log-normal jitter of each rank, collections of garbage and the first steps of all, a save that
    stalls one rank, a cold cache of data of one rank, and another job on one node for some lines.
    """
    disturbed = {"rank": 0, "until": 0}

    def line(number: int) -> list[RankSeconds]:
        # A neighbour for up to ten lines. Two in a row slow a rank for most of a window: not noise.
        if rng.random() < 0.01 and number > disturbed["until"] + WINDOW:
            disturbed.update(rank=rng.randrange(ranks), until=number + rng.randrange(1, 10))
        own = []
        for rank in range(ranks):
            compute = rng.lognormvariate(0.0, 0.08) * (slow if rank == 3 else 1.0)
            data = rng.expovariate(50.0)
            if number <= 3:
                compute += rng.uniform(1, 5)
            if rng.random() < 0.02:
                compute += rng.uniform(0.1, 1.0)  # a save, a collection
            if rng.random() < 0.01:
                data += rng.uniform(0.1, 2.0)
            if disturbed["rank"] == rank and number < disturbed["until"]:
                compute *= 1.5
            own.append((compute, data))
        return step_of(own)

    return line


@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_noise_raises_no_alarm(ranks: int) -> None:
    windows = 24_000 // ranks
    found, _ = watched(StragglerWatch([0] * ranks), windows, noisy(random.Random(7), ranks=ranks))
    assert found == [], f"in {windows} windows of {ranks} ranks"


@pytest.mark.parametrize("seed", range(20))
def test_a_straggler_is_found_among_noise(seed: int) -> None:
    line = noisy(random.Random(seed), ranks=8, slow=1.3)
    found, _ = watched(StragglerWatch([0] * 8), 3 * WINDOW, line)
    assert [one.rank for _, one in found] == [3]
    assert found[0][0] <= 2 * WINDOW
    assert found[0][1].factor == pytest.approx(1.3, abs=0.08)


# ---- what is shown -------------------------------------------------------------------------------


def test_a_summary_hides_no_slow_rank() -> None:
    ranks = 4096
    watch = StragglerWatch([0] * ranks)
    for extra in (0.2, 0.4):
        watch.add(step_of([(1.0 + extra * (rank == 777), 0.0) for rank in range(ranks)]))
    spans = watch.summary()
    assert len(spans) == SPANS
    assert [(spans[0]["first_rank"], spans[-1]["last_rank"])] == [(0, ranks - 1)]
    (slowest,) = [span for span in spans if span["rank"] == 777]
    assert slowest["first_rank"] <= 777 <= slowest["last_rank"]
    assert slowest["compute_seconds"] == pytest.approx(1.3), "the mean of the window"


def test_the_values_of_a_small_job() -> None:
    watch = StragglerWatch([0, 0])
    watch.add(step_of([(1.0, 0.5), (2.0, 0.0)]))
    assert watch.values() == pytest.approx(
        {
            "ranks/own_seconds_median": 1.75,
            "ranks/own_seconds_max": 2.0,
            "ranks/wait_seconds_median": 0.25 + TRANSFER,
            "ranks/wait_seconds_min": TRANSFER,
            "ranks/stragglers": 0.0,
            "ranks/own_seconds/0": 1.5,
            "ranks/own_seconds/1": 2.0,
        }
    )


def test_the_series_of_an_attempt_are_few_whichever_ranks_are_slow() -> None:
    watch = StragglerWatch([0] * 64)
    named: list[set[str]] = []

    def line(number: int) -> list[RankSeconds]:
        slow = range(3 * (number // WINDOW), 3 * (number // WINDOW) + 3)
        return step_of([(2.0 if rank in slow else 1.0, 0.0) for rank in range(64)])

    for number in range(10 * WINDOW):
        watch.add(line(number))
        named.append({name for name in watch.values() if "/own_seconds/" in name})
    assert named[0] == set()
    assert len(set.union(*named)) == SERIES
    assert all(earlier <= later for earlier, later in pairwise(named))


def test_a_slow_rack_is_named_by_its_costliest_ranks() -> None:
    """A thousand of 4,096 ranks: each would be an event, an entry of each view and a series."""
    ranks, slow = 4096, 1000
    watch = StragglerWatch([0] * ranks)
    times = step_of([(1.5 + 0.001 * rank if rank < slow else 1.0, 0.0) for rank in range(ranks)])
    news = []
    for _ in range(FOUND_LINES + MAX_STRAGGLERS // NEW_STRAGGLERS + 2):
        new, gone = watch.add(times)
        assert gone == []
        news.append([one.rank for one in new])
    assert news[: FOUND_LINES - 1] == [[]] * (FOUND_LINES - 1)
    assert news[FOUND_LINES - 1] == [999, 998, 997, 996, 995, 994, 993, 992]
    assert max(map(len, news)) == NEW_STRAGGLERS
    assert watch.ranks == list(range(slow - MAX_STRAGGLERS, slow))
    assert watch.values()["ranks/stragglers"] == slow


def test_a_wait_that_all_share_is_the_transfer() -> None:
    """On a GPU the durations of collectives overlap with compute."""
    times = [RankSeconds(0.4, 0.0, 0.6), RankSeconds(0.7, 0.0, 0.3), RankSeconds(0.2, 0.1, 0.7)]
    corrected = [tuple(one) for one in without_shared_wait(times, [0, 0, 1])]
    expected = [(0.7, 0.0, 0.3), (1.0, 0.0, 0.0), (0.9, 0.1, 0.0)]
    for found, wanted in zip(corrected, expected, strict=True):
        assert found == pytest.approx(wanted)

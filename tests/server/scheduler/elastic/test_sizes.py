"""Sizes of elastic jobs: the fastest that fits, and changes that recover their cost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.jobs.jobs.next_attempt import Baseline, plan_next_attempt
from server.scheduler.elastic.sizes import (
    GAIN_OVER_COST,
    Size,
    fastest,
    is_worth_its_cost,
    search_best_size,
)
from trainyard.protocol.attempt import Overrides
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout


def baseline(
    world_size: int = 6, *, most: int = 24, batch: int = 24, micro: int = 4, **parallelism: Any
) -> Baseline:
    spec = parse_job_spec(
        {
            "training": {"global_batch_size": batch, "micro_batch_size": micro},
            "resources": {
                "world_size": world_size,
                "min_world_size": parallelism.get("tp", 1),
                "max_world_size": most,
            },
            "parallelism": parallelism,
        }
    )
    return Baseline(spec, Overrides(), spec.layout())


def best_size(
    before: Baseline, sizes: Iterable[int], fits: Callable[[Layout], bool]
) -> Size | None:
    search = search_best_size(before, sizes, fits=fits)
    while True:
        try:
            next(search)
        except StopIteration as end:
            found: Size | None = end.value
            return found


@pytest.mark.parametrize(
    ("axes", "world_size", "name"),
    [
        ({}, 4, "FSDP 4"),
        ({"dp_replicate": 6, "dp_shard": 1}, 4, "DDP 4"),
        ({"dp_replicate": 2, "dp_shard": 3}, 4, "HSDP 2x2"),
        ({"dp_replicate": 2, "dp_shard": 3}, 3, "FSDP 3"),
        ({"tp": 2}, 4, "FSDP 2 x TP 2"),
        ({"tp": 2}, 3, None),
        ({}, 25, None),  # more ranks than sequences
    ],
)
def test_another_size_changes_data_parallelism_alone(
    axes: dict[str, int], world_size: int, name: str | None
) -> None:
    size = fastest(baseline(**axes), world_size)
    assert (str(size.layout) if size else None) == name


def test_the_batch_stays_and_the_micro_batch_leaves_few_slots_idle() -> None:
    before = baseline()
    size = fastest(before, 4)
    assert size is not None
    training = size.next.effective.training
    assert training.global_batch_size == 24
    assert training.micro_batch_size == 3  # 4 would leave every third slot idle
    assert size.speed == 4.0
    again = fastest(before, 6)
    assert again is not None
    assert again.next.effective.training.micro_batch_size == 4
    assert again.next.overrides == Overrides()


def test_a_size_is_the_request_of_a_resize_to_it() -> None:
    before = baseline(dp_replicate=2, dp_shard=3)
    size = fastest(before, 4)
    assert size is not None
    assert plan_next_attempt(before, size.request).overrides == size.next.overrides


def test_a_program_uses_its_layouts_and_keeps_the_one_of_the_person() -> None:
    layouts = [{"dp_shard": 2}, {"tp": 2}, {"dp_shard": 4}, {"dp_shard": 2, "tp": 2}]
    program = {"command": ["train.py"], "resume": "any_world_size", "layouts": layouts}
    resources = {"world_size": 4, "min_world_size": 2}
    spec = parse_job_spec({"program": program, "resources": resources})
    before = Baseline(spec, Overrides(), Layout(dp_shard=2, tp=2))
    found = {number: fastest(before, number) for number in (2, 3, 4)}
    names = {number: str(size.layout) if size else None for number, size in found.items()}
    assert names == {2: "FSDP 2", 3: None, 4: "FSDP 2 x TP 2"}
    assert found[4] is not None
    shrunk = replace(before, layout=Layout(dp_shard=2))
    grown = plan_next_attempt(shrunk, found[4].request)
    assert grown.plan.layout == before.layout


def test_of_equally_fast_sizes_the_smallest_counts() -> None:
    before = baseline(8, most=8, batch=8, micro=1)  # 5, 6 and 7 ranks need two rounds, as 4 do
    size = best_size(before, range(1, 8), fits=lambda _: True)
    assert size is not None
    assert size.world_size == 4
    whole = best_size(before, range(1, 9), fits=lambda _: True)
    assert whole is not None
    assert whole.world_size == 8


@given(st.integers(1, 48), st.integers(1, 4), st.integers(0, 12), st.integers(1, 12))
def test_no_size_that_fits_is_faster_than_the_best(
    batch: int, micro: int, free: int, most: int
) -> None:
    before = baseline(1, most=min(most, batch), batch=batch, micro=min(micro, batch))
    sizes = range(1, most + 1)
    best = best_size(before, sizes, fits=lambda layout: layout.world_size <= free)
    speeds = {
        size: found.speed
        for size in sizes
        if size <= free and (found := fastest(before, size)) is not None
    }
    if best is None:
        assert speeds == {}
        return
    assert best.speed == max(speeds.values())
    assert best.world_size == min(n for n, speed in speeds.items() if speed == best.speed)


@pytest.mark.parametrize(
    ("seconds_left", "new_speed", "worth"),
    [(540.0, 6.0, True), (539.0, 6.0, False), (10**6, 4.0, False), (10**6, 3.0, False)],
)
def test_a_change_is_worth_its_cost_when_it_saves_three_times_as_much(
    seconds_left: float, new_speed: float, worth: bool
) -> None:
    found = is_worth_its_cost(
        seconds_left=seconds_left, speed=4.0, new_speed=new_speed, restart_seconds=60.0
    )
    assert found is worth


@pytest.mark.parametrize("seed", range(20))
def test_random_arrivals_never_make_growth_slower_than_staying(seed: int) -> None:
    """Slots come and go at random; each growth that the rule allows recovers its cost."""
    chance, restart, work = random.Random(seed), 60.0, 40_000.0
    before = baseline(2, most=12, batch=48, micro=1)
    low, high, pause = 2, 12, 600.0
    size = low
    at = changed_at = done = 0.0
    changes: list[float] = []
    while done < work:
        free = chance.randint(0, high - low)
        present, new = fastest(before, size), None
        assert present is not None
        if at - changed_at >= pause and free:
            sizes = range(size + 1, min(high, size + free) + 1)
            new = best_size(before, sizes, fits=lambda _: True)
        left = (work - done) / present.speed
        if new is not None and is_worth_its_cost(
            seconds_left=left, speed=present.speed, new_speed=new.speed, restart_seconds=restart
        ):
            after = restart + (work - done) / new.speed
            assert left - after >= (GAIN_OVER_COST - 1) * restart
            size, changed_at = new.world_size, at + restart
            changes.append(at)
            at += restart
            continue
        step = chance.uniform(1.0, 120.0)
        at += step
        done += step * present.speed
    assert len(changes) <= high - low
    assert all(b - a >= pause + restart for a, b in pairwise(changes))
    assert changes
    assert at < work / low

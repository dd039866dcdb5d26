"""The learning rate: its shape at known steps, and what holds for every schedule."""

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.protocol.attempt import Overrides
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.rules import check_job_spec


def job(steps: int = 100, lr: float = 1.0, **schedule: Any) -> JobSpec:
    document = {"training": {"steps": steps}, "optimizer": {"lr": lr}, "lr_schedule": schedule}
    spec = parse_job_spec(document)
    check_job_spec(spec)
    return spec


def rates(spec: JobSpec, steps: int) -> list[float]:
    """Rates of the steps 1 to `steps`."""
    return [spec.schedule.rate(step) for step in range(1, steps + 1)]


schedules = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["warmup_stable_decay", "cosine"]),
        "warmup_steps": st.integers(0, 60),
        "decay_steps": st.none() | st.integers(0, 60),
        "decay_shape": st.sampled_from(["linear", "cosine", "sqrt"]),
        "min_lr_ratio": st.floats(0, 1),
    }
)


def decay_length(spec: JobSpec) -> float:
    """Steps between the peak's last and the schedule's end."""
    section, total = spec.lr_schedule, spec.schedule_steps
    if section.name == "cosine":
        return total - section.warmup_steps
    asked = total / 5 if section.decay_steps is None else section.decay_steps
    return min(asked, total - section.warmup_steps)


@given(schedule=schedules, steps=st.integers(60, 150), lr=st.floats(1e-6, 10))
def test_every_schedule_is_bounded_and_ends_at_its_last_value(
    schedule: dict[str, Any], steps: int, lr: float
) -> None:
    spec = job(steps, lr, **schedule)
    course = rates(spec, steps + 20)
    floor = lr * schedule["min_lr_ratio"]
    warmup = schedule["warmup_steps"]
    assert all(rate > 0 or floor == 0 for rate in course)
    assert all(rate <= lr * (1 + 1e-12) for rate in course)
    assert all(rate >= floor * (1 - 1e-12) for rate in course[warmup:])
    end = floor if decay_length(spec) > 0 else lr
    assert course[steps - 1] == pytest.approx(end, rel=1e-9, abs=1e-12)
    assert course[steps - 1 :] == [course[steps - 1]] * 21  # and stays there


@given(schedule=schedules, steps=st.integers(60, 150))
def test_every_schedule_is_continuous(schedule: dict[str, Any], steps: int) -> None:
    spec = job(steps, **schedule)
    warmup, length = schedule["warmup_steps"], decay_length(spec)
    course = [0.0 if warmup else 1.0, *rates(spec, steps + 5)]
    # The steepest that each part may be: a line, half a cosine, a root at its start.
    up = 1 / warmup if warmup else 0.0
    down = max(math.pi / 2 / length, math.sqrt(1 / length)) if length else 0.0
    for before, after in pairwise(course):
        assert -down - 1e-12 <= after - before <= up + 1e-12


@given(schedule=schedules, steps=st.integers(60, 150))
def test_it_rises_then_falls(schedule: dict[str, Any], steps: int) -> None:
    course = rates(job(steps, **schedule), steps)
    warmup = schedule["warmup_steps"]
    assert course[:warmup] == sorted(course[:warmup])
    falling = course[max(warmup - 1, 0) :]
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize(
    ("steps", "schedule", "warmup"),
    [
        (100, {}, 10),
        (10, {}, 10),
        (5, {}, 5),
        (1, {"name": "cosine"}, 1),
        (100, {"total_steps": 4}, 4),
        (100, {"total_tokens": 2 * 2048 + 1}, 2),
        (100, {"total_tokens": 1}, 0),
        (5, {"warmup_steps": 3}, 3),
    ],
)
def test_a_default_warmup_is_no_longer_than_the_schedule(
    steps: int, schedule: dict[str, Any], warmup: int
) -> None:
    spec = job(steps, **schedule)
    stored = parse_job_spec(spec.model_dump_json())
    assert stored.lr_schedule.warmup_steps == spec.lr_schedule.warmup_steps == warmup
    assert stored == spec
    longer = Overrides(steps=1000).apply(stored)
    assert rates(longer, 20) == rates(spec, 20), "a resume with more steps warms up as before"


def test_warmup_rises_in_a_line_and_reaches_the_peak() -> None:
    spec = job(warmup_steps=4)
    assert rates(spec, 5) == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates(job(warmup_steps=0), 1) == [1.0]


def test_stable_holds_until_the_last_fifth_and_falls_in_a_line() -> None:
    spec = job(min_lr_ratio=0.0)
    assert spec.schedule.rate(80) == 1.0
    assert spec.schedule.rate(90) == pytest.approx(0.5)
    assert spec.schedule.rate(100) == 0.0


@pytest.mark.parametrize(
    ("shape", "half_way"),
    [("linear", 0.5), ("cosine", 0.5), ("sqrt", 1 - math.sqrt(0.5))],
)
def test_decay_shapes_half_way(shape: str, half_way: float) -> None:
    spec = job(decay_steps=50, decay_shape=shape, min_lr_ratio=0.2)
    assert spec.schedule.rate(75) == pytest.approx(0.2 + 0.8 * half_way)


def test_cosine_is_half_way_down_in_the_middle() -> None:
    spec = job(name="cosine", warmup_steps=10, min_lr_ratio=0.0)
    assert spec.schedule.rate(55) == pytest.approx(0.5)


def test_a_decay_of_no_length_leaves_the_rate_at_its_peak() -> None:
    assert rates(job(decay_steps=0, warmup_steps=0), 120) == [1.0] * 120


def test_more_steps_on_a_resume_do_not_move_the_schedule() -> None:
    spec = job()
    longer = Overrides(steps=400).apply(spec)
    assert rates(longer, 100) == rates(spec, 100)
    assert longer.schedule.rate(400) == spec.schedule.rate(100)


# ---- counted in tokens ---------------------------------------------------------------------------


@given(
    schedule=schedules,
    steps=st.integers(60, 150),
    total=st.none() | st.integers(60, 200),
    given_in_tokens=st.sets(st.sampled_from(["warmup", "decay", "total"])),
)
def test_lengths_in_tokens_are_lengths_in_steps(
    schedule: dict[str, Any], steps: int, total: int | None, given_in_tokens: set[str]
) -> None:
    in_steps = job(steps, **schedule, total_steps=total)
    tokens = dict(schedule, total_steps=total)
    for part in given_in_tokens:
        length = tokens.pop(f"{part}_steps")
        if length:
            tokens[f"{part}_tokens"] = length * in_steps.tokens_per_step
        else:
            tokens[f"{part}_steps"] = length  # none, which tokens have no way to say
    in_tokens = job(steps, **tokens)
    assert rates(in_tokens, steps + 20) == rates(in_steps, steps + 20), "bit by bit"
    assert in_tokens.schedule_steps == in_steps.schedule_steps


def test_the_end_of_a_schedule_in_tokens_may_lie_within_a_step() -> None:
    spec = job(warmup_tokens=3000, total_tokens=10_000, decay_tokens=1000, min_lr_ratio=0.0)
    assert spec.tokens_per_step == 2048
    assert spec.schedule_steps == 5
    expected = [2048 / 3000, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert rates(spec, 6) == pytest.approx(expected)


def test_a_schedule_in_tokens_does_not_move_either_when_a_resume_adds_steps() -> None:
    spec = job(total_tokens=100_000)
    longer = Overrides(steps=400).apply(spec)
    check_job_spec(longer)
    assert longer.lr_schedule == spec.lr_schedule
    assert rates(longer, 400) == rates(spec, 400)
    assert Overrides().apply(longer) == longer

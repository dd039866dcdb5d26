"""The learning rate: its shape at known steps, and what holds for every schedule."""

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.attempt import Overrides
from specs.job import JobSpec, parse_job_spec
from specs.lr_schedule import learning_rate
from specs.rules import check_job_spec


def job(steps: int = 100, lr: float = 1.0, **schedule: Any) -> JobSpec:
    document = {"training": {"steps": steps}, "optimizer": {"lr": lr}, "lr_schedule": schedule}
    spec = parse_job_spec(document)
    check_job_spec(spec)
    return spec


def rates(spec: JobSpec, steps: int) -> list[float]:
    """Rates of the steps 1 to `steps`."""
    return [learning_rate(spec, step) for step in range(1, steps + 1)]


schedules = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["warmup_stable_decay", "cosine"]),
        "warmup_steps": st.integers(0, 60),
        "decay_steps": st.none() | st.integers(0, 60),
        "decay_shape": st.sampled_from(["linear", "cosine", "sqrt"]),
        "min_lr_ratio": st.floats(0, 1),
    }
)


def decay_length(spec: JobSpec) -> int:
    """Steps between the peak's last and the schedule's end."""
    section, total = spec.lr_schedule, spec.schedule_steps
    if section.name == "cosine":
        return total - section.warmup_steps
    asked = total // 5 if section.decay_steps is None else section.decay_steps
    return min(asked, total - section.warmup_steps)


@given(schedule=schedules, steps=st.integers(60, 150), lr=st.floats(1e-6, 10))
def test_every_schedule_is_bounded_and_ends_where_it_says(
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


def test_warmup_rises_in_a_line_and_reaches_the_peak() -> None:
    spec = job(warmup_steps=4)
    assert rates(spec, 5) == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates(job(warmup_steps=0), 1) == [1.0]


def test_stable_holds_until_the_last_fifth_and_falls_in_a_line() -> None:
    spec = job(min_lr_ratio=0.0)
    assert learning_rate(spec, 80) == 1.0
    assert learning_rate(spec, 90) == pytest.approx(0.5)
    assert learning_rate(spec, 100) == 0.0


@pytest.mark.parametrize(
    ("shape", "half_way"),
    [("linear", 0.5), ("cosine", 0.5), ("sqrt", 1 - math.sqrt(0.5))],
)
def test_decay_shapes_half_way(shape: str, half_way: float) -> None:
    spec = job(decay_steps=50, decay_shape=shape, min_lr_ratio=0.2)
    assert learning_rate(spec, 75) == pytest.approx(0.2 + 0.8 * half_way)


def test_cosine_is_half_way_down_in_the_middle() -> None:
    spec = job(name="cosine", warmup_steps=10, min_lr_ratio=0.0)
    assert learning_rate(spec, 55) == pytest.approx(0.5)


def test_a_decay_of_no_length_leaves_the_rate_at_its_peak() -> None:
    assert rates(job(decay_steps=0, warmup_steps=0), 120) == [1.0] * 120


def test_more_steps_on_a_resume_do_not_move_the_schedule() -> None:
    spec = job()
    longer = Overrides(steps=400).apply(spec)
    assert rates(longer, 100) == rates(spec, 100)
    assert learning_rate(longer, 400) == learning_rate(spec, 100)

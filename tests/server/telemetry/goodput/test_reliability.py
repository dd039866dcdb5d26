"""Published estimates against the figures of their papers and of tables of the distributions."""

from __future__ import annotations

import math

import pytest

from server.telemetry.goodput.reliability import (
    daly_interval,
    expected_ettr,
    mttf_lower,
    mttf_upper,
)

HOURS_PER_DAY = 24
RSC_1, RSC_2 = 6.50e-3, 2.34e-3
"""Failures per node and day of the two clusters of arXiv 2410.21680; a node has 8 GPUs."""


def mttf_hours(gpus: int, rate: float) -> float:
    return HOURS_PER_DAY / (gpus / 8 * rate)


def ettr(mttf: float, *, interval: float, startup: float, queue: float = 0.0) -> float:
    """Return the expected ETTR with saves that do not stall training; times are in hours."""
    return expected_ettr(mttf=mttf, interval=interval, stall=0.0, startup=startup, queue=queue)


def test_the_projected_mttf_of_the_paper() -> None:
    assert mttf_hours(16_384, RSC_1) == pytest.approx(1.8, abs=0.05)
    assert mttf_hours(131_072, RSC_1) == pytest.approx(0.23, abs=0.005)


@pytest.mark.parametrize(("interval_minutes", "expected"), [(60, 0.7), (5, 0.93)])
def test_the_expected_ettr_of_the_paper(interval_minutes: int, expected: float) -> None:
    """A job on all 16,000 GPUs of RSC-1, with a start-up of 5 minutes and saves in background."""
    found = ettr(mttf_hours(16_000, RSC_1), interval=interval_minutes / 60, startup=5 / 60)
    assert found == pytest.approx(expected, abs=0.02)


def test_the_expected_ettr_is_what_failures_at_this_rate_leave() -> None:
    """A failure every 1,000 s of scheduled time, in the middle of an interval."""
    mttf, interval, stall, startup, queue = 1_000.0, 100.0, 4.0, 30.0, 50.0
    productive = (mttf - startup - interval / 2) * interval / (interval + stall)
    found = expected_ettr(mttf=mttf, interval=interval, stall=stall, startup=startup, queue=queue)
    assert found == pytest.approx(productive / (mttf + queue))
    assert expected_ettr(mttf=60, interval=100, stall=0, startup=30, queue=0) == 0


@pytest.mark.parametrize(("mttf_minutes", "best"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_the_intervals_of_dalys_paper(mttf_minutes: float, best: float) -> None:
    """Figures 3 to 5, of a stall of 5 minutes."""
    assert daly_interval(5, mttf_minutes) == pytest.approx(best, abs=0.5 if best > 10 else 0.05)


def test_a_stall_beyond_twice_the_mttf_leaves_its_interval() -> None:
    assert daly_interval(100, 40) == 40


@pytest.mark.parametrize(
    ("failures", "lower", "upper"),
    # Half of the quantiles 0.95 of 2 (n + 1) degrees and 0.05 of 2 n degrees of chi-squared.
    [(0, 5.9915 / 2, None), (1, 9.4877 / 2, 0.10259 / 2), (10, 33.924 / 2, 10.851 / 2)],
)
def test_the_bounds_of_an_mttf(failures: int, lower: float, upper: float | None) -> None:
    assert mttf_lower(1.0, failures) == pytest.approx(1 / lower, rel=1e-4)
    assert mttf_upper(1.0, failures) == (
        None if upper is None else pytest.approx(1 / upper, rel=1e-4)
    )


def test_the_bounds_of_many_failures_are_those_of_a_normal_distribution() -> None:
    failures, deviations = 5_000, 1.6449
    for bound, sign in ((mttf_lower, 1), (mttf_upper, -1)):
        found = bound(1.0, failures)
        assert found is not None
        assert 1 / found == pytest.approx(
            failures + sign * deviations * math.sqrt(failures), rel=1e-3
        )

"""Expected durations of jobs, limited to the range of `datetime`."""

from __future__ import annotations

from datetime import timedelta

LONGEST_EXPECTED = timedelta(days=10_000)
"""Longest expected duration of a job. Ranks report its pace, and `datetime` ends with the year
9999: without the limit one such job would fail the rounds of all jobs."""


def expected_time(seconds: float) -> timedelta:
    """Return an expected duration, at least zero and at most `LONGEST_EXPECTED`.

    Args:
        seconds: computed from a job's pace; may be infinite, and NaN counts as zero.
    """
    return timedelta(seconds=min(max(0.0, seconds), LONGEST_EXPECTED.total_seconds()))

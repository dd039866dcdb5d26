"""Times that are expected of jobs, within what a `datetime` can hold."""

from __future__ import annotations

from datetime import timedelta

LONGEST_EXPECTED = timedelta(days=10_000)
"""Longest time that is expected of a job. Ranks report its pace, and a later year than 9999 is no
`datetime`: one such job would fail the rounds of all."""


def expected_time(seconds: float) -> timedelta:
    """Return an expected time, at least zero and at most `LONGEST_EXPECTED`.

    Args:
        seconds: what the pace of a job gives: infinity too, and NaN, which counts as zero.
    """
    return timedelta(seconds=min(max(0.0, seconds), LONGEST_EXPECTED.total_seconds()))

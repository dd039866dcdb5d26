"""Expected durations of jobs, limited to the range of `datetime`."""

from __future__ import annotations

from datetime import timedelta

LONGEST_EXPECTED = timedelta(days=10_000)
"""Maximum expected duration of a job. Ranks report the pace from which it is computed, and
`datetime` ends with the year 9999, so without this limit one job could fail the rounds for all
jobs.
"""


def expected_time(seconds: float) -> timedelta:
    """Return an expected duration, limited to the range from zero to `LONGEST_EXPECTED`.

    Args:
        seconds: duration computed from a job's pace. It may be infinite; NaN counts as zero.
    """
    return timedelta(seconds=min(max(0.0, seconds), LONGEST_EXPECTED.total_seconds()))

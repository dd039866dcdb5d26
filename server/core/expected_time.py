"""Expected durations of jobs, limited to the range of `datetime`."""

from __future__ import annotations

from datetime import timedelta

LONGEST_EXPECTED = timedelta(days=10_000)
"""Maximum expected duration of a job. The duration follows from the pace that ranks report, and
`datetime` ends with the year 9999. Without this limit, one job could make every round fail.
"""


def expected_time(seconds: float) -> timedelta:
    """Return a duration of `seconds`, from zero to `LONGEST_EXPECTED`; NaN counts as zero."""
    return timedelta(seconds=min(max(0.0, seconds), LONGEST_EXPECTED.total_seconds()))

"""Leases of an attempt's nodes: pure arithmetic of time (docs/lifecycle.md, 15)."""

from __future__ import annotations

from datetime import datetime, timedelta

SKEW = timedelta(seconds=60)
"""So far clocks of servers may differ; what lies further ahead was written before a clock was set
back."""


def lease_expired(
    heard_at: datetime, *, up_since: datetime | None, now: datetime, seconds: float
) -> bool:
    """Return whether a lease has run out.

    Args:
        heard_at: time of the last report, or of the claim before the first one.
        up_since: since when reports could arrive without a gap; None when they cannot now.
        now: the present time.
        seconds: length of the lease.
    """
    if up_since is None:
        return False
    return silence(heard_at, up_since=up_since, now=now) > timedelta(seconds=seconds)


def silence(heard_at: datetime, *, up_since: datetime, now: datetime) -> timedelta:
    """Return for how long nothing was heard that could have been heard.

    A time further ahead than clocks differ was written before the clock was set back: it would
    keep a dead node alive until the clock has caught up.
    """
    heard = up_since if heard_at > now + SKEW else max(heard_at, up_since)
    return now - heard

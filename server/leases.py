"""Leases of an attempt's nodes: pure arithmetic of time (docs/lifecycle.md, 15)."""

from __future__ import annotations

from datetime import datetime, timedelta


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
    return max(heard_at, up_since) + timedelta(seconds=seconds) < now

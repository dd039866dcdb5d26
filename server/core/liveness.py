"""Beats of the API servers, so that no lease expires while no server can receive reports."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timedelta

from sqlalchemy import Connection, or_, select, update

from server.core.context import Context
from server.core.database.tables import liveness
from server.core.database.upsert import insert_absent
from server.core.leases import SKEW, ServerUptime

logger = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
"""Pause between two beats, in seconds. Every API process writes the same row."""
GAP = timedelta(seconds=5)
"""If more than this time passes between two beats, the servers count as down. A shorter outage
counts as silence of the nodes. So a lease must be longer than this time plus a supervisor's maximum
pause between two tries to report.
"""


def beat(context: Context) -> None:
    """Record that an API server is up; after a gap, start a new uptime."""
    now = context.now()
    with context.database.write() as connection:
        first = {"id": 1, "beat_at": now, "up_since": now}
        if insert_absent(connection, liveness, [first]):
            return
        gap = or_(liveness.c.beat_at < now - GAP, liveness.c.beat_at > now + SKEW)
        connection.execute(update(liveness).where(gap).values(beat_at=now, up_since=now))
        connection.execute(update(liveness).where(liveness.c.beat_at < now).values(beat_at=now))


def server_uptime(connection: Connection, now: datetime) -> ServerUptime | None:
    """Return the current uptime of the servers, or None while no server is up."""
    row = connection.execute(select(liveness.c.beat_at, liveness.c.up_since)).one_or_none()
    if row is None or not now - GAP <= row.beat_at <= now + SKEW:
        return None
    return ServerUptime(now, up_since=row.up_since)


def keep_beating(context: Context, stop: threading.Event) -> None:
    """Beat every `BEAT_SECONDS` until `stop` is set; an outage of the database causes a gap."""
    while not stop.wait(BEAT_SECONDS):
        try:
            beat(context)
        except Exception:  # the next beat tries again
            logger.warning("no beat was written", exc_info=True)

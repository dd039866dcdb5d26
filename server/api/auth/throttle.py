"""Limit on the failed logins of an address, shared by all API servers."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, case, delete, literal, or_, select, update

from server.core.addresses import counted_as
from server.core.context import Context
from server.core.database.column_types import UtcDateTime
from server.core.database.tables import failed_logins
from server.core.database.upsert import insert_absent
from server.core.errors import TooManyError

MAX_FAILURES = 10
WINDOW = timedelta(minutes=1)
"""Period in which logins of an address may fail `MAX_FAILURES` times. After that, the address
cannot log in until the period ends.
"""


def check_logins(context: Context, host: str) -> None:
    """Raise `TooManyError`, with the seconds to wait, if logins of an address failed too often."""
    now, window = context.now(), failed_logins.c
    query = select(window.begin_at).where(
        window.address == counted_as(host), window.failures >= MAX_FAILURES, ~_is_over(now)
    )
    with context.database.read() as connection:
        begin_at = connection.scalar(query)
    if begin_at is not None:
        seconds = math.ceil((begin_at + WINDOW - now).total_seconds())
        raise TooManyError(
            f"{MAX_FAILURES} logins of this address failed; try again in {seconds} seconds",
            retry_seconds=seconds,
        )


def note_failed_login(context: Context, host: str) -> None:
    """Count a failed login of an address."""
    now, window, address = context.now(), failed_logins.c, counted_as(host)
    first = {"address": address, "begin_at": now, "failures": 1}
    with context.database.write() as connection:
        if insert_absent(connection, failed_logins, [first]):
            return
        over = _is_over(now)
        connection.execute(
            update(failed_logins)
            .where(window.address == address)
            .values(
                begin_at=case((over, literal(now, UtcDateTime)), else_=window.begin_at),
                failures=case((over, 1), else_=window.failures + 1),
            )
        )


def forget_failed_logins(context: Context) -> int:
    """Delete the windows that are over, and return the number of deleted windows."""
    with context.database.write() as connection:
        over = delete(failed_logins).where(_is_over(context.now()))
        return connection.execute(over).rowcount


def _is_over(now: datetime) -> ColumnElement[bool]:
    """Return the SQL condition that a window has ended, or begins too far in the future.

    A window that begins more than `WINDOW` in the future was stored before a clock was set back. If
    a window begins less far in the future, the clock of another server is ahead, and the window
    counts.
    """
    begin_at = failed_logins.c.begin_at
    return or_(begin_at <= now - WINDOW, begin_at > now + WINDOW)

"""Limits on the failed logins of an address and of an account, shared by all API servers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, case, delete, literal, not_, or_, select, update

from server.core.addresses import counted_as
from server.core.audit.request_rows import no_change
from server.core.context import Context
from server.core.database.column_types import UtcDateTime
from server.core.database.upsert import insert_absent
from server.core.errors import TooManyError, UnauthenticatedError, UnavailableError
from server.core.people.user_tables import failed_logins

MAX_FAILURES = 10
WINDOW = timedelta(minutes=1)
"""Period in which logins of an address may fail `MAX_FAILURES` times. After that, the address
cannot log in until the period ends.
"""
ACCOUNT_WINDOW = timedelta(minutes=15)
"""The same period for an account. It is longer, because one person may guess from many addresses.
"""


@dataclass(frozen=True)
class Guessed:
    """What a login counts for: an address or an account."""

    key: str
    window: timedelta
    words: str


def of_address(host: str) -> Guessed:
    """Return the counter of a client's address; for IPv6, of its /64."""
    return Guessed(counted_as(host), WINDOW, "of this address")


def of_account(name: str) -> Guessed:
    """Return the counter of an account; unknown names have one, too."""
    return Guessed(f"account {name[:100]}", ACCOUNT_WINDOW, f"as {name[:100]!r}")


def refuse_guess(context: Context, counter: Guessed) -> None:
    """Refuse a guess if too many have failed; nothing is counted.

    Raises:
        TooManyError: too many have failed.
    """
    with context.database.read() as connection:
        _check(connection, counter, context.now())


@contextmanager
def guess(context: Context, *counters: Guessed) -> Iterator[None]:
    """Count a login before it is checked, and take the count back unless the check refuses it.

    Concurrent guesses therefore cannot exceed the limit.

    Raises:
        TooManyError: too many logins have failed; nothing is counted.
    """
    counted = count_guess(context, counters)
    try:
        yield
    except UnauthenticatedError:
        raise
    except BaseException:  # for example no free place for the check: that is no guess
        take_back(context, counted)
        raise
    take_back(context, counted)


def count_guess(context: Context, counters: Sequence[Guessed]) -> list[tuple[str, datetime]]:
    """Count a login that is about to be checked; return what `take_back` needs.

    Raises:
        TooManyError: too many logins have failed, with the seconds to wait; nothing is counted.
    """
    # First only read, so that a flood of refused logins takes no turn of the writers.
    with context.database.read() as connection:
        for each in counters:  # two at most
            _check(connection, each, context.now())
    with no_change(), context.database.write() as connection:
        # Sorted, as in every statement that locks several rows, to prevent deadlocks.
        some = sorted(counters, key=lambda each: each.key)
        return [(each.key, _count(connection, each, context.now())) for each in some]


def _count(connection: Connection, counter: Guessed, now: datetime) -> datetime:
    window, ends_at = failed_logins.c, now + counter.window
    first = {"key": counter.key, "ends_at": ends_at, "failures": 1}
    if insert_absent(connection, failed_logins, [first]):
        return ends_at
    over = _is_over(now, counter.window)
    counted: datetime | None = connection.scalar(
        update(failed_logins)
        .where(window.key == counter.key, or_(over, window.failures < MAX_FAILURES))
        .values(
            ends_at=case((over, literal(ends_at, UtcDateTime)), else_=window.ends_at),
            failures=case((over, 1), else_=window.failures + 1),
        )
        .returning(window.ends_at)
    )
    if counted is not None:
        return counted
    _check(connection, counter, now)
    raise UnavailableError("the failed logins are being counted; try again soon")


def _check(connection: Connection, counter: Guessed, now: datetime) -> None:
    """Raise `TooManyError` if a counter is at its limit."""
    window = failed_logins.c
    is_full = (window.key == counter.key) & (window.failures >= MAX_FAILURES)
    until = connection.scalar(
        select(window.ends_at).where(is_full, not_(_is_over(now, counter.window)))
    )
    if until is None:
        return
    seconds = max(1, math.ceil((until - now).total_seconds()))
    raise TooManyError(
        f"{MAX_FAILURES} logins {counter.words} failed; try again in {seconds} seconds",
        retry_seconds=seconds,
    )


def take_back(context: Context, counted: Sequence[tuple[str, datetime]]) -> None:
    """Take back the counts of a login that was no wrong guess, unless their periods have ended."""
    window = failed_logins.c
    with no_change(), context.database.write() as connection:
        for key, ends_at in counted:  # two at most
            same = (window.key == key) & (window.ends_at == ends_at) & (window.failures > 0)
            fewer = update(failed_logins).where(same).values(failures=window.failures - 1)
            connection.execute(fewer)


def forget_failed_logins(context: Context) -> int:
    """Delete the windows that are over, and return the number of deleted windows."""
    with context.database.write() as connection:
        over = delete(failed_logins).where(_is_over(context.now(), ACCOUNT_WINDOW))
        return connection.execute(over).rowcount


def _is_over(now: datetime, window: timedelta) -> ColumnElement[bool]:
    """Return the SQL condition that a window has ended, or ends too far in the future.

    A window that ends more than two periods in the future was stored before a clock was set back.
    If it ends less far in the future, the clock of another server is ahead, and the window counts.
    """
    ends_at = failed_logins.c.ends_at
    return or_(ends_at <= now, ends_at > now + 2 * window)

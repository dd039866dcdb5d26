"""Leases: a node claims work once, keeps it by reports, and loses it after a silence.

One mechanism for the nodes of attempts and for operations (docs/lifecycle.md, 7-8, 15-17, 32-35):

- claim: a guarded move out of the state in which the work is offered, so only one claim succeeds;
- renewal: each report of the holder stores its time;
- expiry: a silence that is longer than the lease, counted only while a server can hear reports;
- fence: a report of any claim but the last one is refused;
- takeover, once: the transaction that takes a lease away checks that nothing was heard since the
  silence was found.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Table, and_, false, func, or_

from server.core.database.tables import attempt_nodes, operations
from server.core.errors import ConflictError
from trainyard.protocol.states import AttemptNodeState, OperationState

SKEW = timedelta(seconds=60)
"""So far clocks of servers may differ; what lies further ahead was written before a clock was set
back."""


@dataclass(frozen=True, slots=True)
class ServerUptime:
    """The time in which reports can arrive: a silence before `up_since` counts against no node."""

    now: datetime
    up_since: datetime
    """Start of the servers' present uptime."""

    def silence(self, heard_at: datetime) -> timedelta:
        """Return for how long nothing was heard that could have been heard.

        A time further ahead than clocks differ was written before the clock was set back: it would
        keep a dead node alive until the clock has caught up.
        """
        ahead = heard_at > self.now + SKEW
        return self.now - (self.up_since if ahead else max(heard_at, self.up_since))

    def is_silent(
        self, heard_at: ColumnElement[datetime], *, seconds: float
    ) -> ColumnElement[bool]:
        """Return the condition that a row was not heard for longer than this."""
        limit = self.now - timedelta(seconds=seconds)
        if self.up_since >= limit:
            return false()
        return or_(heard_at < limit, heard_at > self.now + SKEW)


class HeardRow(Protocol):
    """A row with the key of a lease, and when its holder was heard."""

    @property
    def heard_at(self) -> datetime:
        """The last sign of life, as it was read."""


@dataclass(frozen=True)
class Leases:
    """The leases that one table holds, a row each."""

    table: Table
    key: tuple[str, ...]
    held: Collection[StrEnum]
    """States in which a row has a holder that must report."""
    claimed_at: str
    """Column of the time of the claim, which counts as a report until the first one."""

    @property
    def heard_at(self) -> ColumnElement[datetime]:
        """The last sign of life of the holder."""
        columns = self.table.c
        return func.coalesce(columns.last_report_at, columns[self.claimed_at])

    @property
    def are_held(self) -> ColumnElement[bool]:
        """The condition that a row has a holder."""
        return self.table.c.state.in_(sorted(self.held))

    def claim(self, now: datetime) -> dict[str, Any]:
        """Return the columns of a claim; a report of an earlier one no longer counts."""
        return {self.claimed_at: now, "last_report_at": None}

    def renewal(self, now: datetime) -> dict[str, Any]:
        """Return the columns of a report."""
        return {"last_report_at": now}

    def expired(self, uptime: ServerUptime, *, seconds: float) -> ColumnElement[bool]:
        """Return the condition that a held lease of this length has run out."""
        return and_(self.are_held, uptime.is_silent(self.heard_at, seconds=seconds))

    def unheard_since(self, found: HeardRow) -> ColumnElement[bool]:
        """Return the condition of a takeover: `found` is held and was not heard since it was read.

        Args:
            found: the key of a row, and its `heard_at`.
        """
        same = (self.table.c[name] == getattr(found, name) for name in self.key)
        return and_(*same, self.are_held, self.heard_at == found.heard_at)


NODE_LEASES = Leases(
    attempt_nodes,
    key=("attempt_id", "node"),
    held=(AttemptNodeState.CLAIMED, AttemptNodeState.RUNNING),
    claimed_at="claimed_at",
)
OPERATION_LEASES = Leases(
    operations, key=("id",), held=(OperationState.RUNNING,), claimed_at="started_at"
)


def lease_expired(heard_at: datetime, uptime: ServerUptime | None, *, seconds: float) -> bool:
    """Return whether a lease has run out; `uptime` is None while no server can hear reports."""
    return uptime is not None and uptime.silence(heard_at) > timedelta(seconds=seconds)


def check_fence(holder: object, reporter: object, *, refusal: str) -> None:
    """Refuse a report that another claim than the holder's sends.

    Raises:
        ConflictError: it is another one.
    """
    if holder != reporter:
        raise ConflictError(refusal)


def is_recent(heartbeat_at: datetime, now: datetime, *, seconds: float) -> bool:
    """Return whether a heartbeat came within so many seconds.

    One from the future, written before the clock was set back, is not recent: it would bar others
    until the clock has caught up.
    """
    return abs(now - heartbeat_at) <= timedelta(seconds=seconds)

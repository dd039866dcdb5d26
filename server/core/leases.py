"""Leases: a node claims work once, keeps it by reports, and loses it after a silence.

Shares of attempts use the same mechanism as operations (docs/lifecycle.md, 7-8, 15-17, 32-35):

- claim: a guarded move out of the state in which the work is offered, so only one claim succeeds;
- renewal: each report of the holder stores the time of the report;
- expiry: a silence longer than the lease, counted only while a server can receive reports;
- fence: reports that belong to earlier claims are refused;
- takeover: the transaction that ends an expired lease checks that no report has arrived meanwhile.
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
"""Maximum difference between the clocks of servers. A stored time that is further in the future was
written before a clock was set back.
"""


@dataclass(frozen=True, slots=True)
class ServerUptime:
    """Period in which reports can arrive. A silence before `up_since` counts against no node."""

    now: datetime
    up_since: datetime
    """Start of the current uptime of the servers."""

    def silence(self, heard_at: datetime) -> timedelta:
        """Return the time without a report while reports could arrive.

        A `heard_at` more than `SKEW` in the future is ignored, because it was written before a
        clock was set back. Otherwise a dead node would count as alive until the clock reaches that
        time.
        """
        ahead = heard_at > self.now + SKEW
        return self.now - (self.up_since if ahead else max(heard_at, self.up_since))

    def is_silent(
        self, heard_at: ColumnElement[datetime], *, seconds: float
    ) -> ColumnElement[bool]:
        """Return the SQL condition that the holder of a row is silent for longer than `seconds`."""
        limit = self.now - timedelta(seconds=seconds)
        if self.up_since >= limit:
            return false()
        return or_(heard_at < limit, heard_at > self.now + SKEW)


class HeardRow(Protocol):
    """A row with the key of a lease and the time of its holder's last sign of life."""

    @property
    def heard_at(self) -> datetime:
        """Time of the holder's last sign of life, as it was read."""


@dataclass(frozen=True)
class Leases:
    """The leases of one table, one per row."""

    table: Table
    key: tuple[str, ...]
    held: Collection[StrEnum]
    """States in which a row has a holder that must report."""
    claimed_at: str
    """Column with the time of the claim, which counts as the first report."""

    @property
    def heard_at(self) -> ColumnElement[datetime]:
        """Time of the holder's last sign of life, as a column of a query."""
        columns = self.table.c
        return func.coalesce(columns.last_report_at, columns[self.claimed_at])

    @property
    def are_held(self) -> ColumnElement[bool]:
        """SQL condition that a row has a holder."""
        return self.table.c.state.in_(sorted(self.held))

    def claim(self, now: datetime) -> dict[str, Any]:
        """Return the columns to set for a claim; they clear the last report of an earlier claim."""
        return {self.claimed_at: now, "last_report_at": None}

    def renewal(self, now: datetime) -> dict[str, Any]:
        """Return the columns to set for a report."""
        return {"last_report_at": now}

    def expired(self, uptime: ServerUptime, *, seconds: float) -> ColumnElement[bool]:
        """Return the SQL condition that a held lease of length `seconds` has expired."""
        return and_(self.are_held, uptime.is_silent(self.heard_at, seconds=seconds))

    def unheard_since(self, found: HeardRow) -> ColumnElement[bool]:
        """Return the SQL condition that a row is held, with no report since `found` was read."""
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
    """Return whether a lease has expired; `uptime` is None while no server can receive reports."""
    return uptime is not None and uptime.silence(heard_at) > timedelta(seconds=seconds)


def check_fence(holder: object, reporter: object, *, refusal: str) -> None:
    """Check that a report belongs to the claim of the current holder.

    Raises:
        ConflictError: the report belongs to another claim; the text of the error is `refusal`.
    """
    if holder != reporter:
        raise ConflictError(refusal)


def is_recent(heartbeat_at: datetime, now: datetime, *, seconds: float) -> bool:
    """Return whether a heartbeat arrived within the last `seconds`.

    A heartbeat that lies more than `seconds` in the future does not count as recent. Otherwise no
    other worker could register until the clock that was set back has caught up.
    """
    return abs(now - heartbeat_at) <= timedelta(seconds=seconds)

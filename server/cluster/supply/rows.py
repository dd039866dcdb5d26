"""Rows of sources, of their requests for nodes, and of pilots; the lock of a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Literal

from sqlalchemy import ColumnElement, Connection, Table, literal_column, select

from server.core.database.rows import TypedRow
from server.core.database.source_tables import node_requests, pilots, sources
from server.core.errors import NotFoundError
from trainyard.protocol.node_sources.messages import (
    CheckResult,
    EngineState,
    NeedsLogin,
    NodeShape,
    Purpose,
    SourceKind,
    SourceLimits,
)
from trainyard.protocol.states import NodeRequestState

ONLINE_FOR = timedelta(seconds=180)
"""Time without a call after which a provisioner counts as unreachable: three missed listings."""
IS_OPEN: ColumnElement[bool] = node_requests.c.state != literal_column(
    f"'{NodeRequestState.ENDED}'"
)
"""SQL condition for open requests; with a parameter instead of the literal, the partial index would
not apply."""


@dataclass(frozen=True, slots=True)
class StoredSource(TypedRow):
    """A source with all its columns."""

    table: ClassVar[Table] = sources
    name: str
    kind: SourceKind
    shape: NodeShape
    limits: SourceLimits
    request_seconds: float | None
    idle_seconds: float
    leave_seconds: float
    check_addresses: bool
    version: str
    heard_at: datetime
    is_away: bool
    listed_at: datetime | None
    error: str | None
    needs_login: NeedsLogin | None
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    registered_at: datetime

    def is_online(self, now: datetime) -> bool:
        """Return whether the source's provisioner has called recently."""
        return now - self.heard_at <= ONLINE_FOR


@dataclass(frozen=True, slots=True)
class NodeRequest(TypedRow):
    """A request for nodes with all its columns."""

    table: ClassVar[Table] = node_requests
    id: str
    source: str
    purpose: Purpose
    state: NodeRequestState
    nodes: int
    seconds: float | None
    shape: NodeShape
    caused_by: str
    by_person: bool
    claimed_at: datetime | None
    sent_at: datetime | None
    sends: int
    cancel_at: datetime | None
    ask: Literal["status", "explain"] | None
    ref: str | None
    engine_state: EngineState
    unknown_since: datetime | None
    reason: str
    explanation: str | None
    starts_at: datetime | None
    ends_at: datetime | None
    results: tuple[CheckResult, ...] | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Pilot(TypedRow):
    """A pilot of a request, without the hash of its secret."""

    table: ClassVar[Table] = pilots
    request_id: str
    number: int
    named: str | None
    addresses: list[str]
    joined: str | None
    gone_at: datetime | None


def lock_source(connection: Connection, name: str) -> StoredSource:
    """Lock a source, and so its requests, until the transaction ends; return the source.

    Raises:
        NotFoundError: no source has this name.
    """
    locked = StoredSource.select().where(sources.c.name == name).with_for_update(key_share=True)
    row = StoredSource.one_or_none(connection, locked)
    if row is None:
        raise NotFoundError(f"no source has the name {name!r}")
    return row


def open_requests(connection: Connection, source: str) -> Sequence[NodeRequest]:
    """Return the open requests of a source, the oldest first."""
    query = NodeRequest.select().where(node_requests.c.source == source, IS_OPEN)
    return NodeRequest.all(connection, query.order_by(node_requests.c.id))


def open_pilots(connection: Connection, source: str) -> Sequence[Pilot]:
    """Return the pilots of the open requests of a source."""
    of_source = select(node_requests.c.id).where(node_requests.c.source == source, IS_OPEN)
    return Pilot.all(connection, Pilot.select().where(pilots.c.request_id.in_(of_source)))


def one_request(connection: Connection, request_id: str, *, source: str) -> NodeRequest:
    """Return one request of a source.

    Raises:
        NotFoundError: the source has no such request.
    """
    query = NodeRequest.select().where(
        node_requests.c.id == request_id, node_requests.c.source == source
    )
    row = NodeRequest.one_or_none(connection, query)
    if row is None:
        raise NotFoundError(f"source {source!r} has no request with the id {request_id!r}")
    return row

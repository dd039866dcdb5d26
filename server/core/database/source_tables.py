"""Tables of node sources: sources with their limits, requests for nodes, and pilots."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, Integer, String, Table, Text, text

from server.core.database.column_types import Json, Record, UtcDateTime
from server.core.database.schema import ID, choice, metadata, one_of
from trainyard.protocol.node_sources.messages import (
    CheckResult,
    NeedsLogin,
    NodeShape,
    SourceLimits,
)
from trainyard.protocol.states import NodeRequestState

sources = Table(
    "sources",
    metadata,
    Column("name", String(31), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("shape", Record(NodeShape), nullable=False),
    Column("limits", Record(SourceLimits), nullable=False),
    Column("request_seconds", Float),  # null if unlimited
    Column("idle_seconds", Float, nullable=False),
    Column("leave_seconds", Float, nullable=False),
    Column("check_addresses", Boolean, nullable=False),
    Column("version", String(50), nullable=False),
    Column("heard_at", UtcDateTime, nullable=False),  # time of the last call by the provisioner
    Column("is_away", Boolean, nullable=False, server_default="0"),  # as in the last event
    Column("listed_at", UtcDateTime),  # time at which the engine last listed the jobs
    Column("error", Text),  # error of the last call to the engine
    Column("needs_login", Record(NeedsLogin)),
    Column("paused_at", UtcDateTime),
    Column("paused_by", String(100)),
    Column("pause_reason", Text),
    Column("registered_at", UtcDateTime, nullable=False),
)

_OPEN = text("state != 'ended'")
node_requests = Table(
    "node_requests",
    metadata,
    Column("id", ID, primary_key=True),
    Column("source", String(31), ForeignKey("sources.name", ondelete="CASCADE"), nullable=False),
    Column("purpose", String(8), nullable=False),
    Column("state", choice(NodeRequestState), nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("seconds", Float),  # length of the allocation, in seconds; null if none
    Column("shape", Record(NodeShape), nullable=False),  # of the source when the row was stored
    Column("caused_by", Text, nullable=False),
    Column("by_person", Boolean, nullable=False),  # if true, independent of the queue
    Column("claimed_at", UtcDateTime),  # null: the provisioner has not received the request
    Column("sent_at", UtcDateTime),  # time of the last submit message
    Column("sends", Integer, nullable=False, server_default="0"),  # number of submit messages
    Column("cancel_at", UtcDateTime),  # time from which the engine is to cancel the job
    Column("ask", String(8)),  # requested call to the engine: status or explain
    Column("ref", String(200)),  # id of the job in the engine
    Column("engine_state", String(16), nullable=False, server_default="unknown"),
    Column("unknown_since", UtcDateTime),  # time since which the engine does not list the job
    Column("reason", Text, nullable=False, server_default=""),
    Column("explanation", Text),  # explanation of the current state, if a person requested one
    Column("starts_at", UtcDateTime),
    Column("ends_at", UtcDateTime),
    Column("results", Record(tuple[CheckResult, ...])),  # results of a check
    Column("created_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime),  # time at which the request was first seen to run
    Column("ended_at", UtcDateTime),
    one_of("state", NodeRequestState),
    Index(None, "source", "id"),
    Index(None, "ended_at"),
    # Index of open requests, a small part of all stored requests.
    Index("ix_node_requests_open", "source", sqlite_where=_OPEN, postgresql_where=_OPEN),
)

pilots = Table(
    "pilots",
    metadata,
    Column("request_id", ID, ForeignKey("node_requests.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),  # index in the request
    Column("secret_hash", String(64), nullable=False, unique=True),
    Column("named", String(200)),  # instance that the engine names
    Column("addresses", Json, nullable=False, server_default="[]"),  # of the named instance
    Column("joined", String(200)),  # instance that joined
    Column("gone_at", UtcDateTime),  # time at which the engine proved the pilot's end
)

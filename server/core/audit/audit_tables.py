"""Tables of the audit log: rows that wait for their number, the chain, and its anchors."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, String, Table, Text

from server.core.database.column_types import Json, UtcDateTime
from server.core.database.schema import ID, ROW_ID, choice, metadata, one_of
from trainyard.protocol.audit_log.views import AuditOutcome

# Rows as their transactions stored them. Without other indexes, so that a change costs one insert.
audit_pending = Table(
    "audit_pending",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("entry", Json, nullable=False),
)

# Sealed rows; none of them is ever updated. Names are stored, because a row outlives its user.
audit_log = Table(
    "audit_log",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", UtcDateTime, nullable=False),
    Column("operation", String(80), nullable=False),
    Column("outcome", choice(AuditOutcome), nullable=False),
    Column("status", Integer),
    Column("count", Integer),
    Column("user", String(100)),
    Column("user_id", ID),
    Column("token", String(100)),
    Column("token_id", ID),
    Column("session_id", ID),
    Column("break_glass", Boolean),
    Column("address", String(100)),
    Column("object", String(300)),
    Column("project", String(80)),
    Column("before", Json),
    Column("after", Json),
    Column("request_id", String(64)),
    Column("previous", String(64), nullable=False),
    Column("digest", String(64), nullable=False),
    one_of("outcome", AuditOutcome),
    Index("ix_audit_log_at", "at"),
    Index("ix_audit_log_user", "user", "seq"),
    Index("ix_audit_log_token_id", "token_id", "seq"),
    Index("ix_audit_log_operation", "operation", "seq"),
    Index("ix_audit_log_object", "object", "seq"),
    Index("ix_audit_log_project", "project", "seq"),
    Index("ix_audit_log_outcome", "outcome", "seq"),
)

# Signed digests at the ends of segments. They stay when the rows are deleted.
audit_anchors = Table(
    "audit_anchors",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", UtcDateTime, nullable=False),  # when the segment ended
    Column("digest", String(64), nullable=False),
    Column("last_anchor", BigInteger, nullable=False),  # the one before it
    Column("signature", String(64), nullable=False),
)

# One row each: `start` and `head` are the signed ends of the chain. The others are exports, with
# the last row that each has written.
audit_marks = Table(
    "audit_marks",
    metadata,
    Column("name", String(20), primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("digest", String(64)),  # this and the next two only of `start` and `head`
    Column("last_anchor", BigInteger),
    Column("signature", String(64)),
    Column("problem", Text),  # why the last export failed
)

"""Tables of secrets: their names, and their encrypted versions."""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from server.core.database.column_types import UtcDateTime
from server.core.database.schema import ID, metadata

# A secret belongs to a project or to a user. A deletion keeps the row without versions, so that a
# later secret of the name continues the numbers, and no spec means another value by a number.
secrets = Table(
    "secrets",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project", String(80), ForeignKey("projects.name", ondelete="CASCADE")),
    Column("user_id", ID, ForeignKey("users.id")),
    Column("name", String(80), nullable=False),
    Column("version", Integer, nullable=False),  # newest version, deleted ones included
    Column("created_at", UtcDateTime, nullable=False),
    Column("deleted_at", UtcDateTime),
    CheckConstraint("(project IS NULL) != (user_id IS NULL)", name="owner"),
    UniqueConstraint("project", "name"),
    UniqueConstraint("user_id", "name"),
)

secret_versions = Table(
    "secret_versions",
    metadata,
    Column("secret_id", ID, ForeignKey("secrets.id", ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("ciphertext", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("created_by", String(100), nullable=False),
)

"""Tables of users: invitations, browser sessions and failed logins; the submitter of a job."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    case,
    false,
    func,
)

from server.core.database.column_types import UtcDateTime
from server.core.database.schema import ID, choice, metadata, one_of
from server.core.database.tables import jobs
from server.core.subject import ADMIN_USER_ID
from trainyard.protocol.user_accounts.views import ClusterRole, UserKind, UserState

# Rows are never deleted, so that no name is used twice. Tokens, jobs, commands and packs name their
# user without a foreign key, because SQLite would copy their tables to add one.
users = Table(
    "users",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("email", String(254)),
    Column("role", choice(ClusterRole), nullable=False),
    Column("state", choice(UserState), nullable=False),
    Column("password", Text),  # Argon2id hash with its parameters; null without a password
    Column("created_at", UtcDateTime, nullable=False),
    Column("disabled_at", UtcDateTime),
    Column("kind", choice(UserKind), nullable=False, server_default=UserKind.PERSON.value),
    Column("project", String(80)),  # project of a service account; null for persons
    Column("unix_account", String(32), unique=True, index=True),  # on nodes that run jobs as owners
    one_of("role", ClusterRole),
    one_of("state", UserState),
)

# One-time codes with which users set their passwords.
invitations = Table(
    "invitations",
    metadata,
    Column("hash", String(64), primary_key=True),  # SHA-256 of the code
    Column("user_id", ID, ForeignKey("users.id"), nullable=False, index=True),
    Column("maker_id", ID, ForeignKey("users.id"), nullable=False, index=True),
    Column("maker_token_id", ID, index=True),  # token of the maker; null for a password session
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),  # also set when the code is used
)

sessions = Table(
    "sessions",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("id", ID, nullable=False, unique=True),
    Column("user_id", ID, ForeignKey("users.id"), nullable=False),
    Column("token_id", ID, ForeignKey("tokens.id", ondelete="CASCADE")),  # null after a password
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("last_used_at", UtcDateTime),
    Column("address", String(100)),  # address of the login
    Column("browser", String(200)),  # user agent of the login
    Column(
        "by_issuer", Boolean, nullable=False, server_default=false()
    ),  # opened by single sign-on
    Column("issuer_session", String(200), index=True),  # the issuer's id of its own session (`sid`)
    Index(None, "user_id", "id"),
    Index(None, "token_id"),
)

# Failed logins by address and by account, shared by all API servers.
failed_logins = Table(
    "failed_logins",
    metadata,
    Column("key", String(120), primary_key=True),  # an address, for IPv6 its /64; or an account
    Column("ends_at", UtcDateTime, nullable=False),  # end of the period in which failures count
    Column("failures", Integer, nullable=False),  # logins that are being checked included
)

submitter = case(
    (jobs.c.owner_id == ADMIN_USER_ID, func.coalesce(jobs.c.token_id, jobs.c.created_by)),
    else_=jobs.c.owner_id,
)
"""Who submitted a job, as a column of a query: its owner. The tokens of the built-in user count as
different persons, because each of them may stand for one."""

"""Tables of single sign-on: identities at the issuer, logins in progress, groups and devices."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import Column, ForeignKey, Index, Integer, String, Table, Text

from server.core.database.column_types import Json, UtcDateTime
from server.core.database.schema import ID, choice, metadata, one_of
from trainyard.protocol.rest.projects import ProjectRole

REFRESH_TOKEN = "refresh token"
"""Purpose of the encryption of refresh tokens."""
MAX_GROUP = 200
"""Maximum length of the name of a group, in characters."""


class DeviceState(StrEnum):
    """Whether a person has decided about the login of a device."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"


# A person at the issuer, and the user that the person is here. Never found by an e-mail address.
identities = Table(
    "identities",
    metadata,
    Column("issuer", String(500), primary_key=True),
    Column("subject", String(255), primary_key=True),
    Column("user_id", ID, ForeignKey("users.id"), nullable=False, unique=True),
    Column("refresh_token", Text),  # encrypted; null if the issuer gave none, or has refused it
    Column("refresh_at", UtcDateTime, index=True),  # time of the next refresh; null without a token
)

# Logins that have begun at the issuer. Nonce and verifier follow from the cookie, which only the
# browser has.
pending_logins = Table(
    "pending_logins",
    metadata,
    Column("state_hash", String(64), primary_key=True),
    Column("cookie_hash", String(64), nullable=False),
    Column("next_path", Text, nullable=False),
    Column("address", String(100), nullable=False),
    Column("session_id", ID),  # session whose user links an identity; null for a login
    Column("invitation", String(64)),  # hash of the accepted invitation; null without one
    Column("expires_at", UtcDateTime, nullable=False),
    Index(None, "address", "expires_at"),
    Index(None, "expires_at"),
)

# Groups of a user at the issuer. A row counts until it expires.
user_groups = Table(
    "user_groups",
    metadata,
    Column("user_id", ID, ForeignKey("users.id"), primary_key=True),
    Column("group_name", String(MAX_GROUP), primary_key=True),
    Column("expires_at", UtcDateTime, nullable=False, index=True),
)

# Roles of the issuer's groups in projects.
group_roles = Table(
    "group_roles",
    metadata,
    Column(
        "project", String(80), ForeignKey("projects.name", ondelete="CASCADE"), primary_key=True
    ),
    Column("group_name", String(MAX_GROUP), primary_key=True, index=True),
    Column("role", choice(ProjectRole), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    one_of("role", ProjectRole),
)

# Logins of command lines that a person approves in a browser.
device_logins = Table(
    "device_logins",
    metadata,
    Column("device_hash", String(64), primary_key=True),  # SHA-256 of the device code
    Column("code_hash", String(64), nullable=False, unique=True),  # SHA-256 of the user code
    Column("host", String(100), nullable=False),  # name of the machine, as it gave it
    Column("address", String(100), nullable=False),
    Column("scopes", Json),  # requested permissions; null for a token without scopes
    Column("lifetime_seconds", Integer, nullable=False),  # of the token
    Column("state", choice(DeviceState), nullable=False),
    Column("session_id", ID),  # session that has decided
    Column("polled_at", UtcDateTime),
    Column("pause_seconds", Integer, nullable=False),  # minimum pause between two polls
    Column("expires_at", UtcDateTime, nullable=False),
    one_of("state", DeviceState),
    Index(None, "address", "expires_at"),
    Index(None, "expires_at"),
)

"""Logins of devices (RFC 8628): a command line shows a code, and a person approves it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from trainyard.base.model_base import RecordModel, SpecModel
from trainyard.protocol.rest.access import Permission

DAY = 86_400


class DeviceRequest(SpecModel):
    """Body that begins the login of a device."""

    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
    """Name of the machine, which the person sees."""
    scopes: Annotated[tuple[Permission, ...], Field(min_length=1)] | None = None
    """Permissions of the token, each once. Null gives every permission of the user except
    `audit:read`, `sources:write`, `tokens:admin` and `users:admin`."""
    expires_in_seconds: Annotated[int, Field(ge=60, le=30 * DAY)] = 30 * DAY
    """Lifetime of the token; 30 days by default, and at most."""


class DeviceLogin(RecordModel):
    """A login that waits for a person; fields as in RFC 8628."""

    device_code: str
    """Secret with which the device polls."""
    user_code: str
    """Code that the person types or confirms."""
    verification_uri: str
    """Page on which the person approves the login."""
    verification_uri_complete: str
    """The same page with the code."""
    expires_in: int
    """Time in which the login must be approved, in seconds."""
    interval: int
    """Minimum pause between two polls, in seconds."""


class DeviceCode(SpecModel):
    """Body of a poll."""

    device_code: Annotated[str, Field(max_length=200)]
    """Secret of the device."""


class UserCode(SpecModel):
    """Body with the code that a device shows."""

    user_code: Annotated[str, Field(max_length=40)]
    """The code; hyphens, spaces and case do not matter."""


class DeviceDecision(UserCode):
    """Body that approves or denies the login of a device."""

    approved: bool
    """Whether the device gets a token."""


class DeviceView(RecordModel):
    """A device that waits, as a person sees it."""

    host: str
    """Name of the machine, as the machine gave it."""
    address: str
    """Address from which the login began; for IPv6, its /48."""
    same_address: bool
    """Whether this is the address of the person, too. Over ssh, it usually is not."""
    scopes: tuple[Permission, ...] | None
    """Permissions of the token; null for all except `audit:read`, `sources:write`,
    `tokens:admin` and `users:admin`."""
    lifetime_seconds: int
    """Lifetime of the token, in seconds."""
    expires_at: datetime
    """End of the time in which the login may be approved."""

"""Logins of command lines (RFC 8628): a person approves a code in a browser."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Connection, Table, delete, func, insert, select, update

from server.api.accounts.throttle import ACCOUNT_WINDOW, Guessed, count_guess, of_address, take_back
from server.api.auth.browser_sessions import find_session, identity_of
from server.api.auth.permissions import known
from server.api.auth.principals import (
    Principal,
    hold_token,
    lock_users,
)
from server.api.auth.scopes import check_token_request
from server.api.auth.service import ListedToken, create_token
from server.api.auth.tokens import hash_token, make_secret
from server.core.addresses import SITE_PREFIX, counted_as
from server.core.audit.request_rows import name_caller, no_change
from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.errors import (
    ConflictError,
    NotFoundError,
    RefusalError,
    TooManyError,
    UnauthenticatedError,
)
from server.core.people.identity_tables import DeviceState, device_logins
from server.core.subject import Actor
from trainyard.base.names import login_token_name
from trainyard.protocol.rest.access import Permission, TokenRequest
from trainyard.protocol.user_accounts.device_flow import DeviceRequest, DeviceView

LIFETIME = timedelta(minutes=10)
PAUSE_SECONDS = 5
"""First minimum pause between two polls; each poll that comes too early adds as much."""
MAX_PAUSE_SECONDS = 60
"""Maximum of this pause."""
ALPHABET, CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ", 8
"""Letters of user codes: no vowels, so that no words result (RFC 8628, 6.1)."""
MAX_OF_ADDRESS, MAX_WAITING = 20, 5000
"""Maximum number of waiting devices of one address (IPv6: of one site), and of all."""


class DeviceRefusalError(RefusalError):
    """A device gets no token now; `type` ends with the error code of RFC 8628."""

    title = "The device gets no token now"

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.type = f"/problems/{code}"


@dataclass(frozen=True)
class NewDevice:
    """A device that waits; the database stores only hashes of both codes."""

    device_code: str = field(repr=False)
    user_code: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class WaitingDevice(TypedRow):
    """A device that waits for the decision of a person, or for its token."""

    table: ClassVar[Table] = device_logins
    device_hash: str
    host: str
    address: str
    scopes: list[str] | None
    lifetime_seconds: int
    state: DeviceState
    session_id: str | None
    polled_at: datetime | None
    pause_seconds: int
    expires_at: datetime

    def seen_from(self, address: str) -> DeviceView:
        """Return what a person at this address sees before the decision."""
        is_same = self.address == counted_as(address, SITE_PREFIX)
        own = {"scopes": self.permissions, "same_address": is_same}
        return DeviceView(**self.values_for(DeviceView) | own)

    @property
    def permissions(self) -> tuple[Permission, ...] | None:
        """The requested scopes; None for a token without scopes."""
        return None if self.scopes is None else known(self.scopes)

    def token_request(self, now: datetime) -> TokenRequest:
        """Return the request for the token, whose name has the host and the time."""
        return TokenRequest(
            name=login_token_name(self.host, now),
            scopes=self.permissions,
            expires_in_seconds=self.lifetime_seconds,
        )


def begin_device(context: Context, request: DeviceRequest, *, address: str) -> NewDevice:
    """Store a device that waits for a person.

    Raises:
        TooManyError: the address, or all addresses together, have too many waiting devices.
    """
    letters = "".join(secrets.choice(ALPHABET) for _ in range(CODE_LETTERS))
    made, now = NewDevice(make_secret(), letters), context.now()
    host = counted_as(address, SITE_PREFIX)
    row = {
        "device_hash": hash_token(made.device_code),
        "code_hash": hash_token(made.user_code),
        "host": request.host,
        "address": host,
        "scopes": None if request.scopes is None else [*request.scopes],
        "lifetime_seconds": request.expires_in_seconds,
        "state": DeviceState.PENDING,
        "pause_seconds": PAUSE_SECONDS,
        "expires_at": now + LIFETIME,
    }
    its = device_logins.c
    waiting = select(func.count()).select_from(device_logins).where(its.expires_at > now)
    with context.database.read() as connection:
        mine = connection.scalar(waiting.where(its.address == host)) or 0
        if mine >= MAX_OF_ADDRESS or (connection.scalar(waiting) or 0) >= MAX_WAITING:
            seconds = int(LIFETIME.total_seconds())
            raise TooManyError(
                f"{mine} logins of this address wait; try again later", retry_seconds=seconds
            )
    with context.database.write() as connection:
        connection.execute(insert(device_logins).values(row))
    return made


def find_device(
    context: Context, user_code: str, *, principal: Principal, address: str
) -> WaitingDevice:
    """Return the device that waits with a user code; hyphens, spaces and case do not matter.

    Raises:
        NotFoundError: no device waits with this code; this counts as a guess.
        TooManyError: too many guesses of this address or user.
    """
    user_id = principal.actor.owner_id
    guesses = Guessed(f"device codes {user_id}", ACCOUNT_WINDOW, "with a code")
    counted = count_guess(context, [of_address(address), guesses])
    query = WaitingDevice.select().where(*_with_code(context, user_code))
    with context.database.read() as connection:
        found = WaitingDevice.one_or_none(connection, query)
    if found is None:
        raise NotFoundError("no device waits with this code: it is unknown, expired or used")
    take_back(context, counted)
    return found


def decide(
    context: Context, user_code: str, *, approved: bool, principal: Principal, address: str
) -> None:
    """Approve or deny the login of a device in the name of the caller.

    Raises:
        NotFoundError: no device waits with this code.
        TooManyError: too many guesses of this address or user.
        ConflictError: the caller has no browser session.
        ForbiddenError: the token would have permissions that the caller does not have.
        UnauthenticatedError: the session has ended meanwhile.
    """
    actor = principal.actor
    if actor.session_id is None:
        raise ConflictError("a device is approved in a browser: log in there")
    device = find_device(context, user_code, principal=principal, address=address)
    if approved:
        check_token_request(device.token_request(context.now()), actor)
    values = {
        "state": DeviceState.APPROVED if approved else DeviceState.DENIED,
        "session_id": actor.session_id,
    }
    with context.database.write() as connection:
        lock_users(connection, [actor.user_id])
        hold_token(connection, actor, context.now())
        its = update(device_logins).where(*_with_code(context, user_code))
        if connection.execute(its.values(values)).rowcount != 1:
            raise NotFoundError("no device waits with this code: it was used meanwhile")


def exchange(context: Context, device_code: str) -> tuple[ListedToken, str]:
    """Return the token of an approved device, once.

    Raises:
        DeviceRefusalError: no person has decided yet, the device polls too often, the person has
            denied the login, or the login has expired.
        ConflictError: the user has the maximum number of tokens.
    """
    its, now = device_logins.c.device_hash == hash_token(device_code), context.now()
    expired = DeviceRefusalError("expired_token", "the login is unknown, expired or used up")
    query = WaitingDevice.select().where(its, device_logins.c.expires_at > now)
    with context.database.read() as connection:
        device = WaitingDevice.one_or_none(connection, query)
    if device is None:
        raise expired
    if device.state == DeviceState.PENDING:
        raise _pending(context, device, now)
    denied = DeviceRefusalError("access_denied", "the login was denied, or its session has ended")
    session = find_session(context, device.session_id or "")
    if device.state == DeviceState.DENIED or session is None:
        with no_change(), context.database.write() as connection:
            connection.execute(delete(device_logins).where(its))
        raise denied
    actor = session.actor
    name_caller(identity_of(session))
    hold = partial(_use_up, its=its, actor=actor, now=now)
    try:
        return create_token(context, device.token_request(now), actor=actor, hold=hold)
    except UnauthenticatedError:
        raise denied from None
    except LookupError:
        raise expired from None


def _use_up(
    connection: Connection, *, its: ColumnElement[bool], actor: Actor, now: datetime
) -> None:
    """Lock the approving session; use up the login.

    Raises:
        LookupError: the login is used up.
    """
    lock_users(connection, [actor.user_id])
    hold_token(connection, actor, now)
    if connection.execute(delete(device_logins).where(its)).rowcount != 1:
        raise LookupError


def _pending(context: Context, device: WaitingDevice, now: datetime) -> DeviceRefusalError:
    """Note a poll, and return its refusal."""
    pause, last = device.pause_seconds, device.polled_at
    # A second of leeway: the pause of the client begins when it has the former reply.
    is_early = last is not None and now < last + timedelta(seconds=pause - 1)
    longer = min(pause + PAUSE_SECONDS, MAX_PAUSE_SECONDS)
    too_often = DeviceRefusalError("slow_down", f"poll at most every {longer} seconds")
    if is_early and longer == pause:  # a flood of polls takes no turn of the writers
        return too_often
    values: dict[str, Any] = {"polled_at": now}
    if is_early:
        values["pause_seconds"] = longer
    its = device_logins.c.device_hash == device.device_hash
    with no_change(), context.database.write() as connection:
        connection.execute(update(device_logins).where(its).values(values))
    if is_early:
        return too_often
    return DeviceRefusalError("authorization_pending", "no person has approved the login yet")


def _with_code(context: Context, user_code: str) -> tuple[ColumnElement[bool], ...]:
    letters = user_code.replace("-", "").replace(" ", "").upper()
    return (
        device_logins.c.code_hash == hash_token(letters),
        device_logins.c.state == DeviceState.PENDING,
        device_logins.c.expires_at > context.now(),
    )

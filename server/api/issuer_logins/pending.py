"""Logins in progress at the issuer: stored as hashes, used once, bound to one browser."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from sqlalchemy import Table, delete, func, insert, select

from server.api.auth.tokens import hash_token, make_secret
from server.api.sso.faults import LoginError, LoginFault
from server.core.addresses import SITE_PREFIX, counted_as
from server.core.audit.request_rows import no_change
from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.errors import InvalidRequestError
from server.core.people.identity_tables import device_logins, pending_logins

LIFETIME = timedelta(minutes=10)
MAX_OF_ADDRESS, MAX_PENDING = 50, 5000
"""Maximum number of logins in progress of one address (IPv6: of one site), and of all."""
OWN_PATH = re.compile(r"/(?![/\\])[!-~]{0,500}")
"""A path of this site: browsers take `//host`, `/\\host`, and both with line breaks in them, for
another site."""


@dataclass(frozen=True)
class PendingSecrets:
    """The secrets of one login; the database stores only hashes of `state` and `cookie`."""

    state: str = field(repr=False)
    cookie: str = field(repr=False)

    @property
    def nonce(self) -> str:
        """Value that the ID token repeats; it follows from the cookie."""
        return hash_token(f"nonce {self.state} {self.cookie}")

    @property
    def verifier(self) -> str:
        """Verifier of PKCE, which also follows from the cookie: 64 characters."""
        return hash_token(f"verifier {self.state} {self.cookie}")


@dataclass(frozen=True, slots=True)
class PendingLogin(TypedRow):
    """A login that came back from the issuer."""

    table: ClassVar[Table] = pending_logins
    next_path: str
    session_id: str | None
    invitation: str | None


def checked_path(given: str | None) -> str:
    """Return the path to open after a login, by default that of the jobs.

    Raises:
        InvalidRequestError: it is no path of this site.
    """
    if given is None:
        return "/jobs"
    if OWN_PATH.fullmatch(given) is None:
        raise InvalidRequestError.at("query/next", "is no path of this site, such as /jobs")
    return given


def store_pending(
    context: Context,
    *,
    next_path: str,
    address: str,
    session_id: str | None = None,
    invitation: str | None = None,
) -> PendingSecrets:
    """Store a login that begins, and return its secrets.

    Raises:
        LoginError: the address, or all addresses together, have too many logins in progress.
    """
    made = PendingSecrets(make_secret(), make_secret())
    now, host = context.now(), counted_as(address, SITE_PREFIX)
    row = {
        "state_hash": hash_token(made.state),
        "cookie_hash": hash_token(made.cookie),
        "next_path": next_path,
        "address": host,
        "session_id": session_id,
        "invitation": invitation,
        "expires_at": now + LIFETIME,
    }
    pending = pending_logins.c
    open_now = select(func.count()).select_from(pending_logins).where(pending.expires_at > now)
    # Counted before the transaction: a flood of refused logins takes no turn of the writers.
    with context.database.read() as connection:
        mine = connection.scalar(open_now.where(pending.address == host)) or 0
        if mine >= MAX_OF_ADDRESS or (connection.scalar(open_now) or 0) >= MAX_PENDING:
            raise LoginError(LoginFault.BUSY, f"{mine} logins of {host} are in progress")
    with context.database.write() as connection:
        connection.execute(insert(pending_logins).values(row))
    return made


def use_pending(context: Context, secrets: PendingSecrets) -> PendingLogin:
    """Use up a login in progress.

    Raises:
        LoginError: no such login began in this browser, or it is expired or used up.
    """
    its = (
        pending_logins.c.state_hash == hash_token(secrets.state),
        pending_logins.c.cookie_hash == hash_token(secrets.cookie),
    )
    unknown = LoginError(LoginFault.STATE, "no such login began in this browser")
    query = PendingLogin.select().where(*its, pending_logins.c.expires_at > context.now())
    with context.database.read() as connection:
        found = PendingLogin.one_or_none(connection, query)
    if found is None:
        raise unknown
    with no_change(), context.database.write() as connection:
        if connection.execute(delete(pending_logins).where(*its)).rowcount != 1:
            raise unknown
    return found


def forget_pending(context: Context) -> int:
    """Delete the expired logins of browsers and devices; return their number."""
    now = context.now()
    with context.database.write() as connection:
        return sum(
            connection.execute(delete(table).where(table.c.expires_at <= now)).rowcount
            for table in (pending_logins, device_logins)  # two statements
        )

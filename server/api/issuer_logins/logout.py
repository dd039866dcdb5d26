"""Logouts at the issuer: ended here by a logout token, and ended there by a page of the issuer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import select

from server.api.accounts.throttle import WINDOW, Guessed, count_guess, refuse_guess
from server.api.auth.endings import end_sessions
from server.api.auth.principals import lock_users
from server.api.sso.claims import LEEWAY_SECONDS
from server.api.sso.faults import LoginError, LoginFault
from server.api.sso.issuer import Issuer
from server.core.addresses import counted_as
from server.core.context import Context
from server.core.people.identity_tables import identities
from server.core.people.user_tables import sessions


def end_by_logout_token(
    context: Context, issuer: Issuer, logout_token: str, *, address: str
) -> int:
    """End the sessions that a logout token of the issuer names; return their number.

    Sessions that were opened after the logout stay, so a repeated token ends nothing more.

    Raises:
        LoginError: the issuer is down, or the token is not valid.
        TooManyError: too many tokens of this address were not valid.
    """
    # Only failures count, so that an issuer may send many logouts at once.
    key = f"logout tokens {counted_as(address)}"
    failures = Guessed(key, WINDOW, "with a logout token of this address")
    refuse_guess(context, failures)
    try:
        ended = issuer.ended(logout_token)
    except LoginError as error:
        if error.fault is LoginFault.INVALID:
            count_guess(context, [failures])
        raise
    # Before the token: a session that the same person opens later has nothing to do with it.
    until = datetime.fromtimestamp(ended.issued_at, UTC) + timedelta(seconds=LEEWAY_SECONDS)
    which = sessions.c.by_issuer & (sessions.c.created_at <= until)
    if ended.session is not None:
        which &= sessions.c.issuer_session == ended.session
    if ended.subject is not None:
        of_person = select(identities.c.user_id).where(
            identities.c.issuer == issuer.url, identities.c.subject == ended.subject
        )
        which &= sessions.c.user_id.in_(of_person)
    with context.database.write() as connection:
        lock_users(connection, connection.scalars(select(sessions.c.user_id).where(which)).all())
        return end_sessions(connection, which)


def logout_page(issuer: Issuer, *, back_to: str) -> str | None:
    """Return the page that ends the session at the issuer; None if it has none, or is down."""
    try:
        return issuer.logout_url(back_to=back_to)
    except LoginError:
        return None

"""The refresh of groups: every half hour for each person, in threads of the leader."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import ColumnElement, Connection, Select, exists, select, update

from server.api.auth.endings import end_invitations, end_sessions, suspend_tokens
from server.api.auth.principals import IS_ACTIVE, lock_users
from server.api.sso.faults import GrantEndedError, LoginError
from server.api.sso.groups import KEPT_UNREFRESHED, expire_groups, store_groups
from server.api.sso.identities import REFRESH_PAUSE, StoredIdentity
from server.api.sso.issuer import IssuedPerson, Issuer
from server.core.context import Context
from server.core.database.tables import tokens
from server.core.isolation import Isolation
from server.core.people.identity_tables import REFRESH_TOKEN, identities
from server.core.people.user_tables import invitations, sessions, users
from server.core.secrets import KeyFileError

logger = logging.getLogger(__name__)

BATCH = 32
"""Maximum number of persons of one run."""
THREADS = 4
RETRY_PAUSE = timedelta(minutes=5)
"""Pause after a refresh that failed because the issuer is down."""


class GroupKeeper:
    """Starts refreshes of the leader, one batch at a time; a round never waits for the issuer."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._issuer = None if context.settings.oidc_issuer is None else Issuer(context)
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Start a thread for the persons who are due, unless the former one still runs."""
        if self._issuer is None or (self._thread is not None and self._thread.is_alive()):
            return
        with self._context.database.read() as connection:
            if connection.scalar(_due(self._issuer, self._context.now()).limit(1)) is None:
                return
        work = partial(_refresh_logged, self._context, self._issuer)
        self._thread = threading.Thread(target=work, name="groups", daemon=True)
        self._thread.start()

    def expire(self) -> int:
        """Remove expired groups; return the number of their users.

        Persons of another issuer count as left: the settings have changed.
        """
        leave_other_issuers(self._context)
        return expire_groups(self._context)


def refresh_due(context: Context, issuer: Issuer) -> int:
    """Refresh the groups of at most `BATCH` persons who are due; return their number."""
    now = context.now()
    with context.database.write() as connection:
        query = _due(issuer, now).order_by(identities.c.refresh_at, identities.c.subject)
        first = query.limit(BATCH).subquery()
        # Locked in the order of `rotate` of the keys, so that the two do not deadlock.
        some = select(identities.c.subject).where(
            identities.c.issuer == issuer.url, identities.c.subject.in_(select(first.c.subject))
        )
        subjects = connection.scalars(some.order_by(identities.c.user_id).with_for_update()).all()
        # First, so that no other refresh uses the same token: most issuers accept one only once.
        its = (identities.c.issuer == issuer.url) & identities.c.subject.in_(subjects)
        later = update(identities).where(its).values(refresh_at=now + REFRESH_PAUSE)
        connection.execute(later)
        found = StoredIdentity.all(connection, StoredIdentity.select().where(its))
    isolation = Isolation(context.clock.monotonic, pause=REFRESH_PAUSE)

    def refresh(identity: StoredIdentity) -> None:
        with isolation.turn(identity.user_id, f"the groups of user {identity.user_id}"):
            _refresh(context, issuer, identity)

    with ThreadPoolExecutor(THREADS, "groups") as pool:
        list(pool.map(refresh, found))
    return len(found)


def leave_other_issuers(context: Context) -> int:
    """End what came from issuers that the settings no longer name; return the number of persons.

    At most `BATCH` persons a call. Without a refresh token, what they have ends in time anyway.
    """
    query = StoredIdentity.select().where(
        identities.c.issuer != (context.settings.oidc_issuer or ""),
        identities.c.refresh_at.is_not(None),
    )
    with context.database.read() as connection:
        found = StoredIdentity.all(connection, query.limit(BATCH))
    for identity in found:
        with context.database.write() as connection:
            if _hold(connection, identity):
                _leave(context, connection, identity)
    return len(found)


def _refresh_logged(context: Context, issuer: Issuer) -> None:
    try:
        refresh_due(context, issuer)
    except Exception:  # most likely another scheduler leads; it refreshes the groups
        logger.exception("the groups of the issuer could not be refreshed")


def _due(issuer: Issuer, now: datetime) -> Select[str]:
    of_active = exists().where(users.c.id == identities.c.user_id, IS_ACTIVE)
    is_due = (identities.c.issuer == issuer.url) & (identities.c.refresh_at <= now) & of_active
    return select(identities.c.subject).where(is_due)


def _refresh(context: Context, issuer: Issuer, identity: StoredIdentity) -> None:
    try:
        person = issuer.refreshed(_token_of(context, identity), subject=identity.subject)
    except GrantEndedError:
        with context.database.write() as connection:
            if _hold(connection, identity):
                _leave(context, connection, identity)
    except (LoginError, KeyFileError) as error:
        logger.warning("groups of user %s: %s", identity.user_id, error.detail)
        retry = {"refresh_at": context.now() + RETRY_PAUSE}
        with context.database.write() as connection:
            if _hold(connection, identity):
                connection.execute(update(identities).where(_is(identity)).values(retry))
    else:
        with context.database.write() as connection:
            if _hold(connection, identity):
                _store(context, connection, identity, person=person)


def _token_of(context: Context, identity: StoredIdentity) -> str:
    """Return the refresh token of an identity.

    Raises:
        KeyFileError: the key file is missing or damaged, or none of its keys decrypts the token.
    """
    sealed = identity.refresh_token or ""
    token = context.secrets.open_text(sealed, purpose=REFRESH_TOKEN)
    if token is None:
        raise KeyFileError("no key of the file decrypts the refresh token")
    return token


def _hold(connection: Connection, identity: StoredIdentity) -> bool:
    """Lock the user; return whether no login has replaced the refresh token meanwhile."""
    lock_users(connection, [identity.user_id])
    same = identities.c.refresh_token == identity.refresh_token
    query = select(identities.c.subject).where(_is(identity), same).with_for_update()
    return connection.scalar(query) is not None


def _store(
    context: Context, connection: Connection, identity: StoredIdentity, *, person: IssuedPerson
) -> None:
    if person.refresh_token is not None:
        sealed = context.secrets.seal_text(person.refresh_token, purpose=REFRESH_TOKEN)
        changed = update(identities).where(_is(identity)).values(refresh_token=sealed)
        connection.execute(changed)
    store_groups(
        context,
        connection,
        identity.user_id,
        groups=person.groups,
        lasting=KEPT_UNREFRESHED,
    )


def _leave(context: Context, connection: Connection, identity: StoredIdentity) -> None:
    """End what came from the issuer: groups, and sessions of its logins.

    Tokens only stop counting, because a lost reply of the issuer has the same effect: with the next
    login they count again.
    """
    ended = {"refresh_token": None, "refresh_at": None}
    connection.execute(update(identities).where(_is(identity)).values(ended))
    of_user, now = identity.user_id, context.now()
    suspend_tokens(connection, (tokens.c.user_id == of_user) & tokens.c.by_issuer, now)
    end_sessions(connection, (sessions.c.user_id == of_user) & sessions.c.by_issuer)
    end_invitations(connection, invitations.c.maker_id == of_user, now)
    store_groups(context, connection, of_user, groups=(), lasting=KEPT_UNREFRESHED)
    logger.info("the issuer ended the grant of user %s: its logins have ended", of_user)


def _is(identity: StoredIdentity) -> ColumnElement[bool]:
    same = identities.c.issuer == identity.issuer
    return same & (identities.c.subject == identity.subject)

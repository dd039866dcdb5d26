"""Identities at the issuer, and the users that they are here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, Table, delete, insert, or_, select, update

from server.api.auth.endings import end_sessions, end_tokens
from server.api.auth.principals import IS_ACTIVE, lock_users
from server.api.auth.service import RESERVED_NAMES
from server.api.auth.tokens import make_secret
from server.api.sso.faults import LoginError, LoginFault
from server.api.sso.groups import KEPT_UNREFRESHED, KEPT_WITHOUT_TOKEN, have_role, store_groups
from server.api.sso.issuer import IssuedPerson, Issuer
from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.database.tables import tokens
from server.core.people.identity_tables import REFRESH_TOKEN, identities
from server.core.people.user_tables import sessions, users
from trainyard.protocol.user_accounts.views import ClusterRole, Email, UserState

REFRESH_PAUSE = timedelta(minutes=30)
"""Time from one refresh of a person's groups to the next."""
LOGIN_WITHOUT_TOKEN = timedelta(hours=12)
"""Lifetime of a session without a refresh token: the server cannot learn that the person has left.
"""
MAX_GROUPS_IN_LOG = 20
"""Maximum number of names of groups in one line of the log."""
MAX_NAME = 64
MAX_NUMBER = 20
"""Largest number that is added to a taken name; after that, the addition is random."""

_EMAIL: TypeAdapter[str] = TypeAdapter(Email)


@dataclass(frozen=True, slots=True)
class StoredIdentity(TypedRow):
    """An identity with its user and its encrypted refresh token."""

    table: ClassVar[Table] = identities
    issuer: str
    subject: str
    user_id: str
    refresh_token: str | None = field(repr=False)


def find_user(
    context: Context, connection: Connection, issuer: Issuer, *, person: IssuedPerson
) -> str:
    """Return the id of the person's user, which a first login creates; the user is locked.

    Raises:
        LoginError: the user is disabled, or the person gets no user by a login.
    """
    user_id = _user_of(connection, issuer.url, person.subject)
    if user_id is None:
        _check_sign_up(context, connection, person)
        user_id = _create_user(context, connection, person)
        lock_users(connection, [user_id])
        _add_identity(connection, issuer, user_id=user_id, person=person)
    else:
        lock_users(connection, [user_id])
    if connection.scalar(select(users.c.id).where(users.c.id == user_id, IS_ACTIVE)) is None:
        raise LoginError(LoginFault.DISABLED, f"the user {user_id} is disabled")
    return user_id


def link_user(
    connection: Connection,
    issuer: Issuer,
    *,
    user_id: str,
    person: IssuedPerson,
) -> None:
    """Link a person to a user, whom the caller has locked; a repeat changes nothing.

    Raises:
        LoginError: the identity belongs to another user, or the user has another identity.
    """
    same = (identities.c.issuer == issuer.url) & (identities.c.subject == person.subject)
    query = select(identities).where(or_(same, identities.c.user_id == user_id))
    found = connection.execute(query).all()
    if not found:
        _add_identity(connection, issuer, user_id=user_id, person=person)
        return
    (first, *others) = found
    is_own = (first.issuer, first.subject, first.user_id) == (issuer.url, person.subject, user_id)
    if others or not is_own:
        raise LoginError(LoginFault.TAKEN, f"the identity or the user {user_id} is linked already")


def note_login(
    context: Context, connection: Connection, *, user_id: str, person: IssuedPerson
) -> bool:
    """Store the groups and the refresh token of a person who has logged in.

    Tokens that were suspended count again. Return whether the server has a refresh token, so that
    it can learn that the person has left.
    """
    now, its = context.now(), identities.c.user_id == user_id
    if person.refresh_token is not None:  # without a new one, the former one may still be valid
        sealed = context.secrets.seal_text(person.refresh_token, purpose=REFRESH_TOKEN)
        values = {"refresh_token": sealed, "refresh_at": now + REFRESH_PAUSE}
        connection.execute(update(identities).where(its).values(values))
    stored = connection.scalar(select(identities.c.refresh_token).where(its))
    theirs = (tokens.c.user_id == user_id) & tokens.c.by_issuer
    connection.execute(update(tokens).where(theirs).values(suspended_at=None))
    if stored is None:
        ends_at = now + LOGIN_WITHOUT_TOKEN
        longer = update(tokens).where(theirs, tokens.c.expires_at > ends_at)
        connection.execute(longer.values(expires_at=ends_at))
    lasting = KEPT_WITHOUT_TOKEN if stored is None else KEPT_UNREFRESHED
    store_groups(context, connection, user_id, groups=person.groups, lasting=lasting)
    return stored is not None


def unlink(context: Context, connection: Connection, user_id: str) -> bool:
    """Remove the identity of a user, whom the caller has locked; return whether there was one.

    What came with the identity ends: sessions, tokens, and roles of groups.
    """
    its, now = identities.c.user_id == user_id, context.now()
    if not connection.execute(delete(identities).where(its)).rowcount:
        return False
    end_tokens(connection, (tokens.c.user_id == user_id) & tokens.c.by_issuer, now)
    end_sessions(connection, (sessions.c.user_id == user_id) & sessions.c.by_issuer)
    store_groups(context, connection, user_id, groups=(), lasting=KEPT_UNREFRESHED)
    return True


def legal_name(claims: Mapping[str, Any]) -> str:
    """Return a legal name of a user from the claims of a person; it may be taken."""
    given = claims.get("preferred_username")
    text = given.partition("@")[0].lower() if isinstance(given, str) else ""
    return re.sub(r"[^a-z0-9._-]+", "-", text[:MAX_NAME]).lstrip("._-") or "user"


def verified_email(claims: Mapping[str, Any]) -> str | None:
    """Return the person's e-mail address if the issuer has verified it."""
    if claims.get("email_verified") is not True:
        return None
    try:
        return _EMAIL.validate_python(claims.get("email"))
    except ValidationError:
        return None


def _user_of(connection: Connection, issuer: str, subject: str) -> str | None:
    its = (identities.c.issuer == issuer) & (identities.c.subject == subject)
    found: str | None = connection.scalar(select(identities.c.user_id).where(its))
    return found


def _check_sign_up(context: Context, connection: Connection, person: IssuedPerson) -> None:
    rule = context.settings.oidc_sign_up
    in_group = rule == "groups" and have_role(connection, context.settings, person.groups or ())
    if rule != "anyone" and not in_group:
        detail = f"TRAINYARD_OIDC_SIGN_UP={rule}, and {person.subject!r} has no user"
        if rule == "groups":
            detail += f" and {_groups_in_words(context, person)}"
        raise LoginError(LoginFault.SIGN_UP, detail)


def _groups_in_words(context: Context, person: IssuedPerson) -> str:
    """Return for the log why no group of a person gives a role."""
    if person.groups is None:
        return (
            f"no claim {context.settings.oidc_groups_claim!r}: add it to the client, or the scope "
            "that gives it to TRAINYARD_OIDC_SCOPES"
        )
    named = ", ".join(map(repr, person.groups[:MAX_GROUPS_IN_LOG])) or "none"
    return f"no group with a role here; the issuer gave {named}"


def _create_user(context: Context, connection: Connection, person: IssuedPerson) -> str:
    user_id = context.new_id()
    row = {
        "id": user_id,
        "name": _free_name(connection, legal_name(person.claims)),
        "email": verified_email(person.claims),
        "role": ClusterRole.USER,
        "state": UserState.ACTIVE,
        "created_at": context.now(),
    }
    connection.execute(insert(users).values(row))
    return user_id


def _free_name(connection: Connection, name: str) -> str:
    """Return the name, or the name with the first free number; names are never given twice."""
    numbered = [name, *(f"{name[: MAX_NAME - 3]}-{n}" for n in range(2, MAX_NUMBER + 1))]
    taken = {*connection.scalars(select(users.c.name).where(users.c.name.in_(numbered)))}
    free = (each for each in numbered if each not in taken | RESERVED_NAMES)
    random = re.sub(r"[^a-z0-9]", "", make_secret().lower())[:8]
    return next(free, f"{name[: MAX_NAME - 9]}-{random}")


def _add_identity(
    connection: Connection,
    issuer: Issuer,
    *,
    user_id: str,
    person: IssuedPerson,
) -> None:
    row = {
        "issuer": issuer.url,
        "subject": person.subject,
        "user_id": user_id,
    }
    connection.execute(insert(identities).values(row))

"""Who held a token or session that has ended, for the audit log."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, select

from server.core.audit.request_rows import CallerIdentity
from server.core.database.tables import tokens
from server.core.errors import UnauthenticatedError
from server.core.people.user_tables import sessions, users


class EndedCredentialError(UnauthenticatedError):
    """A token or session is unknown or has ended."""

    def __init__(self, detail: str, former: CallerIdentity | None) -> None:
        """Take the former holder; None if the token or session is unknown."""
        super().__init__(detail)
        self.former = former


# Built once, because that takes longer than running them.
_TOKENS = (
    select(tokens.c.hash, tokens.c.id, tokens.c.name, tokens.c.user_id, users.c.name.label("user"))
    .select_from(tokens.join(users, users.c.id == tokens.c.user_id, isouter=True))
    .where(tokens.c.hash.in_(bindparam("of_hashes", expanding=True)))
)
_SESSION = (
    select(sessions.c.id, sessions.c.user_id, users.c.name.label("user"))
    .select_from(sessions.join(users, users.c.id == sessions.c.user_id))
    .where(sessions.c.hash == bindparam("of_hash"))
)


def holders_of_tokens(connection: Connection, hashes: Sequence[str]) -> dict[str, CallerIdentity]:
    """Return who held tokens, by hash; unknown tokens are omitted."""
    if not hashes:
        return {}
    return {
        row.hash: CallerIdentity(
            user=row.user, user_id=row.user_id, token=row.name, token_id=row.id
        )
        for row in connection.execute(_TOKENS, {"of_hashes": hashes})
    }


def holder_of_session(connection: Connection, hash_of_cookie: str) -> CallerIdentity | None:
    """Return who held a session that is still stored; None for an unknown one."""
    row = connection.execute(_SESSION, {"of_hash": hash_of_cookie}).one_or_none()
    if row is None:
        return None
    return CallerIdentity(user=row.user, user_id=row.user_id, session_id=row.id)

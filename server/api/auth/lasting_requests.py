"""Requests that last, such as streams and uploads: they end soon after their access has ended.

A changed role reaches them equally soon.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import String, select, type_coerce, union_all

from server.api.auth.permissions import ALL, scope_of
from server.api.auth.principals import (
    Principal,
    most_of,
    present_roles,
    sessions_of,
    tokens_of,
)
from server.core.context import Context
from server.core.database.column_types import Json
from server.core.database.tables import tokens
from server.core.people.member_tables import everyones_roles, own_roles
from server.core.people.user_tables import sessions, users
from server.core.visibility.scope import Scope
from trainyard.protocol.user_accounts.views import ClusterRole

logger = logging.getLogger(__name__)
Part = TypeVar("Part", str, bytes)

_ACCESS = (
    tokens.c.kind,
    type_coerce(tokens.c.scopes, Json).label("scopes"),
    type_coerce(users.c.role, String).label("role"),
    own_roles,
    everyones_roles,
)
_VALID = union_all(
    tokens_of(select(tokens.c.hash, *_ACCESS).select_from(tokens)),
    sessions_of(select(sessions.c.hash, *_ACCESS).select_from(sessions)),
)

CHECK_SECONDS = 2.0
"""Pause between two checks, in seconds. A check takes one query for all requests of the process."""


@dataclass(eq=False)
class LastingRequest:
    """A request that lasts, with the token or session that authenticated it."""

    credential_hash: str
    is_session: bool
    on_end: Callable[[], None] = field(repr=False)
    """Called in another thread, once, when the access has ended."""
    allows: Callable[[Scope], bool] = field(repr=False)
    """Whether the request may go on with a changed scope."""
    on_change: Callable[[Scope], None] = field(repr=False)
    """Called in another thread with each changed scope."""
    scope: Scope
    has_ended: bool = False
    """Whether the access has ended."""


class LastingRequests:
    """The lasting requests of one process, and the thread that checks their access."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._open: set[LastingRequest] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lasting-requests", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the requests end by themselves."""
        self._stopped.set()
        self._thread.join()

    @contextmanager
    def watched(
        self,
        principal: Principal,
        on_end: Callable[[], None] = lambda: None,
        *,
        allows: Callable[[Scope], bool] = lambda _: True,
        on_change: Callable[[Scope], None] = lambda _: None,
    ) -> Iterator[LastingRequest]:
        """Watch the principal's access while the block runs, in another thread.

        `on_end` is called when the token or session ends, or when `allows` refuses the present
        scope. `on_change` is called with each changed scope.
        """
        session_hash = principal.session_hash
        request = LastingRequest(
            session_hash or principal.credential_hash,
            session_hash is not None,
            on_end,
            allows,
            on_change,
            principal.scope,
        )
        with self._lock:
            self._open.add(request)
        try:
            yield request
        finally:
            with self._lock:
                self._open.discard(request)

    def guarded(
        self, principal: Principal, parts: Iterable[Part], *, allows: Callable[[Scope], bool]
    ) -> Iterator[Part]:
        """Yield the parts of a download while the principal's access allows it.

        Raises:
            ConnectionAbortedError: the access has ended. The response breaks off, so that its part
                does not look complete.
        """
        with self.watched(principal, allows=allows) as access:
            for part in parts:
                if access.has_ended:
                    raise ConnectionAbortedError("the access of a download has ended")
                yield part

    def end_invalid(self) -> int:
        """End all requests without valid access, with one query; return their number.

        The other requests get their present scopes.
        """
        with self._lock:
            asked = [*self._open]
        if not asked:
            return 0
        scopes = present_scopes(
            self._context,
            token_hashes={each.credential_hash for each in asked if not each.is_session},
            session_hashes={each.credential_hash for each in asked if each.is_session},
        )
        ended = [each for each in asked if not _goes_on(each, scopes.get(each.credential_hash))]
        with self._lock:
            ended = [each for each in ended if each in self._open]
            self._open.difference_update(ended)
        for each in ended:
            each.has_ended = True
            try:
                each.on_end()
            except Exception:  # most likely its client has just left; the others must end too
                logger.exception("a request could not be ended")
        return len(ended)

    def _run(self) -> None:
        while not self._stopped.wait(CHECK_SECONDS):
            try:
                self.end_invalid()
            # Most likely the database is unreachable; then no request gets new data from it.
            except Exception:
                logger.exception("the access of lasting requests could not be checked")


def _goes_on(request: LastingRequest, scope: Scope | None) -> bool:
    """Pass a changed scope to a request; return whether the request may go on."""
    if scope is None or not request.allows(scope):
        return False
    if scope != request.scope:
        request.scope = scope
        request.on_change(scope)
    return True


def present_scopes(
    context: Context, *, token_hashes: Collection[str], session_hashes: Collection[str]
) -> dict[str, Scope]:
    """Return the present scopes of people's tokens and sessions by hash, by one query.

    Tokens and sessions that have ended are omitted.
    """
    given = {
        "of_hashes": [*token_hashes],
        "of_sessions": [*session_hashes],
        "now": context.now(),
    }
    with context.database.read() as connection:
        rows = connection.execute(_VALID, given).all()
    found = {}
    for row in rows:
        if row.role is not None:
            roles = present_roles(ClusterRole(row.role), row.own_roles, row.everyones_roles)
            most = ALL if row.kind is None else most_of(row.kind, row.scopes)
            found[row.hash] = scope_of(roles, most)
    return found

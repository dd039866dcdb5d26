"""Refused attempts and uses of the admin token: noted in memory, stored by a thread each second."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from server.core.addresses import counted_as
from server.core.audit.request_rows import (
    Audited,
    AuditedOperation,
    AuditedRequest,
    CallerIdentity,
    append_rows,
    no_change,
)
from server.core.context import Clock, Context
from server.core.database.engine import OBSERVER
from server.core.subject import ADMIN_USER_ID
from trainyard.protocol.audit_log.views import AuditOutcome

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0
"""Pause between two transactions of the thread; a killed process loses what is younger."""
MAX_ROWS = 20
"""Maximum number of rows of one caller in a minute; further attempts are counted."""
MAX_COUNTS = 10
"""Maximum number of counts in a minute for known callers, and again for unknown ones. Further
attempts are counted together, so that a loop or strangers cannot fill the table."""
MAX_WAITING = 5000
"""Maximum number of rows in memory while the database does not answer; further rows are dropped."""
USE_SECONDS = 600.0
"""Time for which a row covers the reads by one admin token or session from one address."""
REFUSED = frozenset({401, 403, 429})
OTHERS = "others"
UNKNOWN = CallerIdentity()


@dataclass(frozen=True)
class _Counted:
    """Attempts that one row counts."""

    operation: str
    status: int
    identity: CallerIdentity
    address: str | None

    @property
    def is_known(self) -> bool:
        return self.identity != UNKNOWN


@dataclass
class _Minute:
    """The refused attempts of one minute."""

    number: int = -1
    rows: Counter[str] = field(default_factory=Counter)
    counts: Counter[_Counted] = field(default_factory=Counter)


class RefusedAttempts:
    """The refused attempts that one server process has seen, and the thread that stores them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._storing = threading.Lock()
        self._rows: list[dict[str, Any]] = []
        self._dropped = 0
        self._minute = _Minute()
        self._uses: dict[object, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="refused attempts", daemon=True)

    @property
    def clock(self) -> Clock:
        """The clock of the rows."""
        return self._context.clock

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and store everything if the database answers."""
        self._stop.set()
        self._thread.join()
        self._try_to_flush(is_over=True)

    def note(self, request: AuditedRequest, status: int) -> None:
        """Note the end of a request; requests that were neither refused nor special are ignored."""
        is_hidden = status == 404 and request.may_be_hidden
        with self._lock:
            if status in REFUSED or is_hidden:
                self._note_refused(request, status)
            elif request.caller is not None and request.caller.break_glass:
                self._note_use(request, request.caller)

    def _note_use(self, request: AuditedRequest, caller: CallerIdentity) -> None:
        if request.audited is not Audited.NO:
            return  # it has a row of its own
        now = self._context.clock.monotonic()
        key = (caller.token_id, caller.session_id, request.address)
        if now - self._uses.get(key, -USE_SECONDS) < USE_SECONDS:
            return
        if len(self._uses) >= MAX_WAITING:
            self._uses.clear()
        self._uses[key] = now
        self._add(request.entry(AuditOutcome.READ))

    def _note_refused(self, request: AuditedRequest, status: int) -> None:
        self._turn_minute()
        known = request.caller or request.named
        if known is not None and not request.is_of_machines:
            key = _key_of(known)
            self._minute.rows[key] += 1
            if self._minute.rows[key] <= MAX_ROWS:
                self._add(request.entry(AuditOutcome.REFUSED, status=status))
                return
        operation = request.operation or "unknown"
        address = None if known is not None else counted_as(request.address) or None
        counted = _Counted(operation, status, known or UNKNOWN, address)
        counts = self._minute.counts
        alike = sum(each.is_known == counted.is_known for each in counts)
        if counted not in counts and alike >= MAX_COUNTS:
            counted = _Counted("unknown", status, UNKNOWN, OTHERS)
        counts[counted] += 1

    def _turn_minute(self, *, is_over: bool = False) -> None:
        """Turn the counts of the former minute into rows."""
        number = int(self._context.clock.monotonic() // 60)
        if number == self._minute.number and not is_over:
            return
        now = self._context.now()
        for counted, count in self._minute.counts.items():
            row = {"at": now, "operation": counted.operation, "outcome": AuditOutcome.REFUSED}
            row |= {"status": counted.status, "count": count, "address": counted.address}
            self._add(row | vars(counted.identity))
        self._minute = _Minute(number)

    def _add(self, row: dict[str, Any]) -> None:
        if len(self._rows) < MAX_WAITING:
            self._rows.append(row)
        else:
            self._dropped += 1

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_SECONDS):
            self._try_to_flush()

    def _try_to_flush(self, *, is_over: bool = False) -> None:
        try:
            self.flush(is_over=is_over)
        except Exception as error:  # noqa: BLE001 - the thread and a shutdown must go on
            logger.warning("refused attempts are not stored yet: %s", type(error).__name__)

    def flush(self, *, is_over: bool = False) -> None:
        """Store the noted rows, and the counts of a minute that has ended.

        Args:
            is_over: also store the counts of the current minute.
        """
        with self._storing:
            with self._lock:
                self._turn_minute(is_over=is_over)
                rows = [*self._rows]
            if not rows:
                return
            with no_change(), self._context.database.write() as connection:
                append_rows(connection, rows)
            with self._lock:
                del self._rows[: len(rows)]
                dropped, self._dropped = self._dropped, 0
        if dropped:
            logger.error("the audit log lacks %d refused attempts: no answer in time", dropped)


def _key_of(caller: CallerIdentity) -> str:
    """Return what has the limit of rows: a user, or a token of a machine or of the built-in user.

    A user makes many tokens. The tokens of the built-in user belong to different people.
    """
    by_user = caller.user_id if caller.user_id != ADMIN_USER_ID else None
    return by_user or caller.token_id or caller.user_id or ""


class AuditMiddleware:
    """Gives each request its audit rows, and notes refused requests."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        refused: RefusedAttempts,
        operations: Mapping[Any, AuditedOperation],
    ) -> None:
        """Take the operations by endpoint function."""
        self.app = app
        self._refused = refused
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        client = scope.get("client")
        request = AuditedRequest(
            self._refused.clock,
            self._operations,
            request_id=scope.get("state", {}).get("request_id", ""),
            address=client[0] if client else "",
        )
        OBSERVER.set(request)
        status = 0

        async def send_noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        finally:
            OBSERVER.set(None)
            if not request.operation:
                request.name_operation(scope)
            self._refused.note(request, status)

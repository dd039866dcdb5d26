"""The export: a thread of the leader writes new rows to each destination, from its position on."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from sqlalchemy import select, update
from sqlalchemy.exc import SQLAlchemyError

from server.core.audit.audit_tables import audit_marks
from server.core.audit.destinations import Destination, destinations
from server.core.audit.export_lines import lines_after
from server.core.audit.request_rows import append_rows, system_row
from server.core.context import Context
from server.core.database.engine import LeadLostError
from server.core.database.upsert import insert_absent, insert_or_replace

logger = logging.getLogger(__name__)

BATCH = 500
"""Number of rows that one write has at most."""
RETRY_SECONDS = 5.0
"""Pause after a failed write."""


class AuditExporter:
    """Starts the export of one epoch of the leader; nothing of it waits for a destination."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._exports = [_Export(context, each) for each in destinations(context.settings)]

    def run(self) -> None:
        """Let each destination continue in its thread, unless the thread still works."""
        for each in self._exports:
            each.start()


class _Export:
    """The export to one destination."""

    def __init__(self, context: Context, destination: Destination) -> None:
        self._context = context
        self._destination = destination
        self._thread: threading.Thread | None = None
        self._next_try = 0.0
        self._problem: str | None = None

    def start(self) -> None:
        """Start a thread, unless one still works or the last one has just failed."""
        if self._thread is not None and self._thread.is_alive():
            return
        if self._context.clock.monotonic() < self._next_try:
            return
        name = f"audit export to {self._destination.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while export_batch(self._context, self._destination):
                self._note(None)
        except LeadLostError:
            return  # the next leader continues at the stored position
        except Exception as error:  # noqa: BLE001 - whatever it is, the next try is later
            self._next_try = self._context.clock.monotonic() + RETRY_SECONDS
            self._note(f"{type(error).__name__}: {error}")

    def _note(self, problem: str | None) -> None:
        if problem == self._problem:
            return
        name, self._problem = self._destination.name, problem
        if problem is None:
            logger.info("the export of the audit log to %s works again", name)
            return
        logger.warning("the audit log is not exported to %s: %s", name, problem)
        first = {"name": name, "seq": 0, "at": self._context.now()}
        its = update(audit_marks).where(audit_marks.c.name == name)
        with suppress(SQLAlchemyError, LeadLostError), self._context.database.write() as connection:
            insert_absent(connection, audit_marks, [first])
            connection.execute(its.values(problem=problem))


def export_batch(context: Context, destination: Destination) -> int:
    """Write the next rows to a destination, then store its position; return the number of lines.

    A crash between the two repeats the rows, so each row arrives at least once.

    Raises:
        OSError: the destination did not take the rows.
        LeadLostError: another scheduler leads; it writes the rows again.
    """
    name = destination.name
    with context.database.read() as connection:
        query = select(audit_marks.c.seq).where(audit_marks.c.name == name)
        position = connection.scalar(query)
        found = lines_after(connection, position or 0, limit=BATCH)
    if found is None:
        return 0
    destination.write(found.lines)
    with context.database.write() as connection:
        # Without the problem of an earlier try, also one by another leader.
        mark = {"name": name, "seq": found.last, "at": context.now(), "problem": None}
        insert_or_replace(connection, audit_marks, [mark])
        if position is not None and position < found.first - 1:
            logger.error("retention deleted rows that the audit log's export to %s lacks", name)
            until = found.first - 1
            missed = {"until_seq": until, "rows": until - position}
            gap = system_row(context, "audit_export_gap", object=f"audit/{name}", after=missed)
            append_rows(connection, [gap])
    return len(found.lines)

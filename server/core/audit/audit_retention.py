"""Retention of the audit log: whole segments are deleted, and their anchors stay."""

from __future__ import annotations

import logging
from datetime import timedelta

from sqlalchemy import delete, select

from server.core.audit.audit_tables import audit_log
from server.core.audit.request_rows import append_rows, system_row
from server.core.audit.signed_digests import (
    START,
    SignedDigest,
    read_anchors,
    read_mark,
    write_mark,
)
from server.core.context import Context
from server.core.database.engine import database_time

logger = logging.getLogger(__name__)

FORGET = "audit_forgotten"
"""Operation of the row that names deleted rows."""


def forget_segments(context: Context) -> int:
    """Delete the oldest segment if it is old; return the number of its rows.

    The signed start of the chain moves to the anchor of the segment, so that the check knows the
    deletion from one by others. Nothing is deleted unless start and anchor are signed.

    Raises:
        KeyFileError: the key file is missing or damaged.
    """
    days, secrets = context.settings.audit_kept_days, context.secrets
    if not days:
        return 0
    with context.database.write() as connection:
        start = read_mark(connection, START, for_update=True)
        if start is None:
            return 0  # the check names it
        anchors, _ = read_anchors(connection)
        end = next((each for each in anchors if each.seq > start.seq), None)
        # The clock of the database, too: a wrong clock of this machine must delete nothing.
        now = min(context.now(), connection.scalars(select(database_time(connection))).one())
        if end is None or end.at >= now - timedelta(days=days):
            return 0
        if not (start.is_signed(secrets) and end.is_signed(secrets)):
            logger.error("the audit log keeps old rows: start or anchor of them is not signed")
            return 0
        gone = connection.execute(delete(audit_log).where(audit_log.c.seq <= end.seq)).rowcount
        moved = SignedDigest(START, end.seq, context.now(), end.digest)
        write_mark(connection, moved.signed(secrets))
        after = {"until_seq": end.seq, "rows": gone}
        append_rows(connection, [system_row(context, FORGET, object="audit", after=after)])
    return gone

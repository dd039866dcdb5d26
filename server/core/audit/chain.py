"""The chain of the audit log: the digest of a row, and the leader's task that seals rows.

A transaction stores its rows without a number, so that transactions do not wait for each other. The
sealer numbers them, and each row carries the digest of the row before.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import Connection, delete, insert, select

from server.core.audit.audit_tables import audit_anchors, audit_log, audit_pending
from server.core.audit.signed_digests import (
    ANCHOR,
    FIRST_DIGEST,
    SignedDigest,
    newest_row,
    trusted_head,
    write_mark,
)
from server.core.context import Context

logger = logging.getLogger(__name__)

BATCH = 500
"""Number of rows that one transaction seals."""
SEGMENT_ROWS = 10_000
"""Number of rows after which a segment ends; its end has an anchor."""
SEGMENT_TIME = timedelta(days=1)
"""Time after which a segment with rows ends."""
COLUMNS = tuple(str(column.name) for column in audit_log.columns)


def digest_of(row: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a row as JSON with sorted names, without `digest` and nulls.

    Nulls are left out, so that a column of a later version changes no digest.
    """
    # `str`, because SQLAlchemy's names of columns are no plain texts.
    fields = {
        str(name): value for name, value in row.items() if value is not None and name != "digest"
    }
    options = orjson.OPT_SORT_KEYS | orjson.OPT_UTC_Z
    return hashlib.sha256(orjson.dumps(fields, option=options)).hexdigest()


def seal(context: Context) -> Iterator[None]:
    """Seal the rows that wait, with a step per batch; the caller is the leader.

    The lock on the head keeps a second leader out, also during a takeover. While the key file is
    unusable, the rows wait.

    Raises:
        KeyFileError: the key file is missing or damaged.
    """
    while True:
        with context.database.write() as connection:
            sealed = seal_batch(context, connection)
        if sealed < BATCH:
            return
        yield


def seal_batch(context: Context, connection: Connection) -> int:
    """Number and chain the next rows; return their count.

    After a head that the server may not extend, rows get numbers and no signature, so that they are
    listed and exported, until an operator signs the chain.

    Raises:
        KeyFileError: the key file is missing or damaged.
    """
    if connection.execute(select(audit_pending.c.id).limit(1)).first() is None:
        return 0
    head = trusted_head(context, connection)
    # Read after the lock, before which another leader may have sealed some.
    waiting = select(audit_pending).order_by(audit_pending.c.id).limit(BATCH)
    rows = connection.execute(waiting).all()
    if not rows:
        return 0
    if head is not None:
        seq, digest = head.seq, head.digest
    else:
        seq, digest = newest_row(connection) or (0, FIRST_DIGEST)
        logger.error("the head of the audit log is not signed: run `python -m server audit verify`")
    sealed: list[dict[str, Any]] = []
    for row in rows:
        seq += 1
        # A server of a later version may have stored further fields.
        entry = {each: row.entry.get(each) for each in COLUMNS}
        entry |= {"seq": seq, "previous": digest, "at": datetime.fromisoformat(entry["at"])}
        digest = entry["digest"] = digest_of(entry)
        sealed.append(entry)
    connection.execute(insert(audit_log), sealed)
    # Not a range: on PostgreSQL, a row with a smaller id may be committed later.
    ids = [row.id for row in rows]
    connection.execute(delete(audit_pending).where(audit_pending.c.id.in_(ids)))
    if head is not None:
        moved = replace(head, seq=seq, digest=digest, at=context.now())
        _move_head(context, connection, moved)
    return len(sealed)


def _move_head(context: Context, connection: Connection, head: SignedDigest) -> None:
    """Sign and store the head, and an anchor if a segment ends with it."""
    if _ends_segment(connection, head):
        anchor = replace(head, name=ANCHOR).signed(context.secrets)
        connection.execute(insert(audit_anchors).values(anchor.stored))
        head = replace(head, last_anchor=head.seq)
    write_mark(connection, head.signed(context.secrets))


def _ends_segment(connection: Connection, head: SignedDigest) -> bool:
    if head.seq - head.last_anchor >= SEGMENT_ROWS:
        return True
    first = select(audit_log.c.at).where(audit_log.c.seq == head.last_anchor + 1)
    begun = connection.scalar(first)
    # A clock that was set back must not end the segments.
    return begun is not None and abs(head.at - begun) >= SEGMENT_TIME


def rows_after(connection: Connection, seq: int, *, limit: int) -> Sequence[dict[str, Any]]:
    """Return at most `limit` sealed rows after `seq`, in order, with all columns."""
    query = select(audit_log).where(audit_log.c.seq > seq).order_by(audit_log.c.seq).limit(limit)
    return [dict(row) for row in connection.execute(query).mappings()]

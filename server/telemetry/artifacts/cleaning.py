"""Deletes unreferenced contents of artifacts, a limited number of blocks per transaction.

Before its deletion, a content is released: it then belongs to no job and counts towards no quota.
The deletion of a job releases the job's contents through the foreign key.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, or_, select, update

from server.core.context import Context
from server.core.database.metric_and_log_tables import artifact_blocks, artifact_contents, artifacts
from server.core.database.tables import attempt_nodes, attempts
from trainyard.protocol.job_artifacts.messages import BLOCK_BYTES
from trainyard.protocol.states import AttemptNodeState

UPLOAD = timedelta(hours=1)
"""An incomplete upload is released if it gets no new block for this time. After the end of an
attempt, the contents that its reports may name are kept at least for this time.
"""
KEPT = timedelta(days=1)
"""Time after which stored content is released if no artifact uses it and no report may name it."""
BLOCKS_AT_ONCE = 8
"""Maximum number of blocks that one transaction deletes; other writers to SQLite wait meanwhile."""
CONTENTS_AT_ONCE = 500
TRANSACTIONS = 16
"""Maximum number of transactions in one round."""
MAX_CONSIDERED = 1000
"""Maximum number of contents that one round checks."""


class ContentCleaner:
    """Checks the contents of all jobs in turn, a limited number in each round."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._last = ""

    def clean(self) -> None:
        """Release unreferenced contents, then delete released ones."""
        self._release_unnamed()
        for _ in range(TRANSACTIONS):
            if not delete_released(self._context):
                return

    def _release_unnamed(self) -> None:
        contents = artifact_contents.c
        over = is_over(self._context.now())
        query = select(contents.id, over).where(contents.id > self._last)
        turn = query.where(contents.job_id.is_not(None)).order_by(contents.id)
        with self._context.database.read() as connection:
            rows = connection.execute(turn.limit(MAX_CONSIDERED)).all()
        self._last = rows[-1].id if len(rows) == MAX_CONSIDERED else ""  # start over at the end
        ids = [content_id for content_id, may_go in rows if may_go]
        if not ids:
            return
        with self._context.database.write() as connection:
            # Lock the rows, then re-check: a concurrent report keeps the content that it names.
            lock = select(contents.id).where(contents.id.in_(ids)).with_for_update(skip_locked=True)
            release(connection, contents.id.in_(connection.scalars(lock).all()) & over)


def is_over(now: datetime) -> ColumnElement[bool]:
    """Return the SQL condition for contents that no report or upload can use any longer."""
    contents = artifact_contents.c
    named = exists().where(artifacts.c.content_id == contents.id)
    may_report = exists().where(
        attempts.c.job_id == contents.job_id,
        attempts.c.created_at <= contents.touched_at,
        attempt_nodes.c.attempt_id == attempts.c.id,
        or_(attempt_nodes.c.state != AttemptNodeState.ENDED, attempts.c.ended_at > now - UPLOAD),
    )
    whole = and_(contents.complete, contents.touched_at < now - KEPT, ~named, ~may_report)
    return or_(whole, ~contents.complete & (contents.touched_at < now - UPLOAD))


def release(connection: Connection, condition: ColumnElement[bool]) -> int:
    """Detach contents from their jobs for later deletion; return the number of contents."""
    released = update(artifact_contents).where(condition).values(job_id=None)
    return connection.execute(released).rowcount


def delete_released(context: Context) -> bool:
    """Delete up to `BLOCKS_AT_ONCE` released blocks; return whether a released content existed."""
    contents = artifact_contents.c
    query = select(contents.id, contents.stored).where(contents.job_id.is_(None))
    query = query.order_by(contents.id).limit(CONTENTS_AT_ONCE)
    with context.database.write() as connection:
        rows = connection.execute(query.with_for_update(skip_locked=True)).all()
        whole: list[str] = []
        left = BLOCKS_AT_ONCE
        for row in rows:
            left -= -(-row.stored // BLOCK_BYTES)
            if left < 0:
                break
            whole.append(row.id)
        if whole:
            connection.execute(delete(artifact_contents).where(contents.id.in_(whole)))
        elif rows:
            _shorten(connection, rows[0].id, rows[0].stored)
    return bool(rows)


def _shorten(connection: Connection, content_id: str, stored: int) -> None:
    """Delete the last blocks of a released content."""
    kept = -(-stored // BLOCK_BYTES) - BLOCKS_AT_ONCE
    blocks = artifact_blocks.c
    last = (blocks.content_id == content_id) & (blocks.number >= kept)
    connection.execute(delete(artifact_blocks).where(last))
    shorter = update(artifact_contents).where(artifact_contents.c.id == content_id)
    connection.execute(shorter.values(stored=kept * BLOCK_BYTES))

"""Stores the content of artifacts in the database, block by block and separately for each job."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

from sqlalchemy import Connection, Table, func, insert, select, update

from server.core.context import Context
from server.core.database.metric_and_log_tables import artifact_blocks, artifact_contents
from server.core.database.rows import TypedRow
from server.core.database.upsert import inserted
from server.core.errors import ConflictError, InvalidRequestError
from server.core.lifecycle import lock_job
from server.jobs.attempts.reports import ReportedShare
from server.telemetry.artifacts.cleaning import UPLOAD, release
from trainyard.protocol.job_artifacts.messages import BLOCK_BYTES, UploadReply
from trainyard.protocol.states import AttemptNodeState
from trainyard.run.artifacts.artifact_records import DropReason
from trainyard.run.artifacts.images import SNIFFED_BYTES, media_type

MAX_CONTENTS = 20_000
"""Maximum number of artifact contents per job."""


@dataclass(frozen=True, slots=True)
class Content(TypedRow):
    """The content of an artifact, without its bytes."""

    table: ClassVar[Table] = artifact_contents
    id: str
    size: int
    stored: int
    complete: bool


def store_block(
    context: Context, share: ReportedShare, digest: str, *, offset: int, size: int, block: bytes
) -> UploadReply:
    """Store a block of an artifact's content, once; return the next offset, or why it is refused.

    Each job has its own contents, so a job cannot get another job's content by a digest. The digest
    is the SHA-256 of the whole content, which has `size` bytes. Each block has `BLOCK_BYTES` bytes;
    only the last block may be shorter. If all blocks are stored but the server stopped before it
    completed the content, a repeated block completes the content.

    Raises:
        ConflictError: the share has ended or is lost, so no report can name its artifacts.
        InvalidRequestError: offset, size and block do not match, or the size differs from before.
        NotFoundError: the job has been deleted.
    """
    if share.node_state == AttemptNodeState.ENDED or share.lost_at is not None:
        raise ConflictError("the share is over: its artifacts are dropped")
    if offset % BLOCK_BYTES or len(block) != min(BLOCK_BYTES, max(size - offset, 0)):
        detail = f"{len(block):,} bytes at offset={offset} of size={size}: legal are blocks of "
        detail += f"{BLOCK_BYTES:,} bytes, and a last one with the rest"
        raise InvalidRequestError.at("", detail)
    with context.database.write() as connection:
        found: Content | DropReason | None = _find(connection, share.job_id, digest)
        if found is None:
            found = _begin(context, connection, job_id=share.job_id, digest=digest, size=size)
        if isinstance(found, str):
            return UploadReply(stored=0, refused=found)
        if found.size != size:
            raise InvalidRequestError.at("query/size", f"size={size} is not {found.size} as before")
        if found.complete:
            touched = update(artifact_contents).where(artifact_contents.c.id == found.id)
            # Keep the content until a report names it.
            connection.execute(touched.values(touched_at=context.now()))
            return UploadReply(stored=size)
        stored = _grow(context, connection, found=found, offset=offset, block=block)
        if stored < size:
            return UploadReply(stored=stored)
    return _complete(context, found.id, digest=digest, size=size)


def _find(connection: Connection, job_id: str, digest: str) -> Content | None:
    contents = artifact_contents.c
    query = Content.select().where(contents.job_id == job_id, contents.digest == digest)
    return Content.one_or_none(connection, query)


def _begin(
    context: Context, connection: Connection, *, job_id: str, digest: str, size: int
) -> Content | DropReason:
    """Return the job's content with this digest; if there is none, insert an empty content.

    If a limit forbids a new content, return this limit. Before, incomplete uploads of the job that
    are older than `UPLOAD` are released.
    """
    lock_job(connection, job_id)  # so that the quota counts concurrent uploads
    if (found := _find(connection, job_id, digest)) is not None:
        return found
    now = context.now()
    mine = artifact_contents.c.job_id == job_id
    cut_off = ~artifact_contents.c.complete & (artifact_contents.c.touched_at < now - UPLOAD)
    release(connection, mine & cut_off)
    if size > context.settings.artifact_file_bytes:
        return "too_large"
    used = select(func.count(), func.coalesce(func.sum(artifact_contents.c.size), 0)).where(mine)
    number, total = connection.execute(used).one()
    if number >= MAX_CONTENTS:
        return "too_many"
    if total + size > context.settings.artifact_quota_bytes:
        return "quota"
    row = {"id": context.new_id(), "job_id": job_id, "digest": digest, "size": size}
    connection.execute(insert(artifact_contents).values(**row, touched_at=now))
    return inserted(Content, row)


def _grow(
    context: Context, connection: Connection, *, found: Content, offset: int, block: bytes
) -> int:
    """Store a block if it is the next one; return the offset at which the upload continues."""
    if offset != found.stored or found.stored == found.size:
        return found.stored
    stored = offset + len(block)
    mine = (artifact_contents.c.id == found.id) & artifact_contents.c.job_id.is_not(None)
    grown = update(artifact_contents).where(
        mine, artifact_contents.c.stored == offset, ~artifact_contents.c.complete
    )
    values = {"stored": stored, "touched_at": context.now()}
    if not connection.execute(grown.values(values)).rowcount:  # a concurrent upload was faster
        return 0
    row = {"content_id": found.id, "number": offset // BLOCK_BYTES, "content": block}
    connection.execute(insert(artifact_blocks).values(row))
    return stored


def _complete(context: Context, content_id: str, *, digest: str, size: int) -> UploadReply:
    """Check the digest of all blocks, then complete the content; release it on a mismatch."""
    sha256, first = hashlib.sha256(), b""
    for block in context.database.blocks(artifact_blocks, content_id):
        first = first or block[:SNIFFED_BYTES]
        sha256.update(block)
    mine = (artifact_contents.c.id == content_id) & artifact_contents.c.job_id.is_not(None)
    with context.database.write() as connection:
        if f"sha256:{sha256.hexdigest()}" != digest:
            release(connection, mine & ~artifact_contents.c.complete)
            return UploadReply(stored=0, refused="unreadable")
        whole = {"complete": True, "media_type": media_type(first)}
        if not connection.execute(update(artifact_contents).where(mine).values(whole)).rowcount:
            return UploadReply(stored=0)  # the content was deleted meanwhile
    return UploadReply(stored=size)

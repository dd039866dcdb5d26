"""Packs in the database, written block by block and kept while a job names them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import timedelta

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    true,
    update,
)

from server.api.auth.endings import write_as
from server.core.audit.request_rows import no_change, note_change
from server.core.context import Context
from server.core.database.metric_and_log_tables import job_packs, pack_blocks, pack_uploaders, packs
from server.core.database.tables import jobs
from server.core.database.upsert import insert_absent
from server.core.errors import ConflictError, InvalidRequestError, NotFoundError
from server.core.subject import Actor
from trainyard.protocol.rest.jobs import PackView

BLOCK_BYTES = 2**20
"""Size of the content in a row, in bytes. Each row has its own short transaction."""
KEPT = timedelta(days=1)
"""Time after which a pack that no job names is deleted."""
UPLOAD = timedelta(hours=1)
"""Time after which an incomplete upload is deleted."""
MAX_PACKS, MAX_BYTES = 500, 4 * 2**30
"""Maximum number of packs per person, and maximum total size of these packs, in bytes."""
MAX_UPLOADS = 8
"""Maximum number of concurrent uploads per person; these uploads together may exceed
`MAX_BYTES`."""

TOO_LONG = "the upload took too long and was given up; send it again"


class PackUpload:
    """One upload of a pack; the content is kept only if `finish` returns without an error."""

    def __init__(self, context: Context, *, actor: Actor) -> None:
        """Delete some expired packs (`delete_unnamed`), and start the upload.

        Raises:
            ConflictError: the person has too many packs, or too many concurrent uploads.
        """
        self._context, self._id, self._actor = context, context.new_id(), actor
        self._sha256, self._size, self._blocks = hashlib.sha256(), 0, 0
        delete_unnamed(context)
        with no_change(), write_as(context, actor) as connection:
            mine = _by(actor)
            query = select(func.count(), func.coalesce(func.sum(packs.c.size), 0)).where(mine)
            number, size = connection.execute(query).one()
            uploaded_again = pack_uploaders.c.user_id == actor.owner_id
            number += connection.scalar(select(func.count()).where(uploaded_again)) or 0
            begun = select(func.count()).where(mine, packs.c.digest.is_(None))
            if (connection.scalar(begun) or 0) >= MAX_UPLOADS:
                raise ConflictError(
                    f"{actor.name} has {MAX_UPLOADS} unfinished uploads, the most that are legal; "
                    "send it again when one has ended"
                )
            if number >= MAX_PACKS or size >= MAX_BYTES:
                raise ConflictError(
                    f"{actor.name} has {number} packs of {size:,} bytes; legal: fewer than "
                    f"{MAX_PACKS} of {MAX_BYTES:,} bytes. Delete jobs that name some: a pack goes "
                    "a day after its last job"
                )
            row = {
                "id": self._id,
                "size": 0,
                "created_by": actor.name,
                "token_id": actor.token_id,
                "user_id": actor.user_id,
                "named_at": context.now(),
            }
            connection.execute(insert(packs).values(row))

    def add(self, block: bytes) -> None:
        """Store the next block.

        Raises:
            ConflictError: the upload took longer than `UPLOAD`.
        """
        self._sha256.update(block)
        self._size += len(block)
        row = {"pack_id": self._id, "number": self._blocks, "content": block}
        with no_change(), self._context.database.write() as connection:
            grown = update(packs).where(packs.c.id == self._id).values(size=self._size)
            if not connection.execute(grown).rowcount:
                raise ConflictError(TOO_LONG)
            connection.execute(insert(pack_blocks).values(row))
        self._blocks += 1

    def finish(self, expected: str) -> PackView:
        """Turn the upload into a pack, or keep the existing pack with the same content.

        Raises:
            InvalidRequestError: the content is empty, or has another digest.
            UnauthenticatedError: the actor's token has ended during the upload.
            ConflictError: the upload took longer than `UPLOAD`.
        """
        digest = f"sha256:{self._sha256.hexdigest()}"
        if not self._size:
            raise InvalidRequestError.at("", "the body is empty; legal: a gzipped tar archive")
        if digest != expected:
            raise InvalidRequestError.at(
                "", f"digest={expected}, but what arrived has {digest}; send it again"
            )
        now = self._context.now()
        with write_as(self._context, self._actor) as connection:
            lock_digest(self._context, connection, digest)
            known = packs.c.digest == digest
            if connection.execute(update(packs).where(known).values(named_at=now)).rowcount:
                pack_id = connection.scalar(select(packs.c.id).where(known))
                mine = {"pack_id": pack_id, "user_id": self._actor.owner_id}
                insert_absent(connection, pack_uploaders, [mine])
                connection.execute(delete(packs).where(packs.c.id == self._id))
            else:
                own = update(packs).where(packs.c.id == self._id)
                if not connection.execute(own.values(digest=digest, named_at=now)).rowcount:
                    raise ConflictError(TOO_LONG)
            note_change(object=f"packs/{digest}")
        return PackView(digest=digest, size=self._size)

    def give_up(self) -> None:
        """Delete the stored blocks unless they have become a pack."""
        unfinished = (packs.c.id == self._id) & packs.c.digest.is_(None)
        with no_change(), self._context.database.write() as connection:
            connection.execute(delete(packs).where(unfinished))


def _by(actor: Actor) -> ColumnElement[bool]:
    """Return the condition for the packs of a person."""
    if actor.is_of_built_in:
        return packs.c.token_id == actor.token_id
    return packs.c.user_id == actor.user_id


def _usable(actor: Actor) -> ColumnElement[bool]:
    """Return the condition for the packs that an actor may use and learn of.

    The actor uploaded the pack, or a job that the actor sees names it. Those who see all
    jobs may use all packs.
    """
    if actor.scope.sees_all:
        return true()
    uploaded = exists().where(
        pack_uploaders.c.pack_id == packs.c.id, pack_uploaders.c.user_id == actor.owner_id
    )
    named = exists().where(
        job_packs.c.pack_id == packs.c.id,
        jobs.c.id == job_packs.c.job_id,
        actor.scope.filter(jobs.c.project),
    )
    return or_(_by(actor), uploaded, named)


def lock_digest(context: Context, connection: Connection, digest: str) -> None:
    """Block other uploads of this content until the transaction ends; SQLite needs no lock."""
    if not context.database.is_sqlite:
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(digest))))


def read_pack(context: Context, digest: str, *, actor: Actor) -> PackView:
    """Return a pack, and keep it for another day, so that no client has to upload it again.

    Raises:
        NotFoundError: no pack has this digest, or the actor may not use it (`_usable`).
    """
    with context.database.write() as connection:
        found = _touched(context, connection, digest, actor=actor)
    if found is None:
        raise NotFoundError(f"no pack has the digest {digest}")
    return PackView(digest=digest, size=found[1])


def check_pack(connection: Connection, digest: str, *, actor: Actor) -> None:
    """Refuse a pack that the server does not have, or that the actor may not use (`_usable`).

    Raises:
        InvalidRequestError: the server lacks the pack; the error points at the field that names it.
    """
    if not connection.scalar(select(packs.c.id).where(packs.c.digest == digest, _usable(actor))):
        raise _unknown(digest)


def name_pack(
    context: Context, connection: Connection, *, job_id: str, digest: str, actor: Actor
) -> None:
    """Record that a job names a pack, which is then kept until the job is deleted.

    Raises:
        InvalidRequestError: the server does not have the pack, or the actor may not use it
            (`_usable`).
    """
    found = _touched(context, connection, digest, actor=actor)
    if found is None:
        raise _unknown(digest)
    connection.execute(insert(job_packs).values(job_id=job_id, pack_id=found[0]))


def content_of(context: Context, job_id: str) -> Iterator[bytes]:
    """Return the blocks of the pack that a job names; each block is read when it is sent.

    Raises:
        NotFoundError: the job names no pack.
    """
    named = select(job_packs.c.pack_id).where(job_packs.c.job_id == job_id)
    with context.database.read() as connection:
        pack_id = connection.scalar(named)
    if pack_id is None:
        raise NotFoundError("the job names no pack")
    return context.database.blocks(pack_blocks, pack_id)


def delete_unnamed(context: Context) -> None:
    """Delete at most four packs that no job has named for a day, or incomplete uploads."""
    now = context.now()
    unnamed = ~exists().where(job_packs.c.pack_id == packs.c.id)
    unfinished = packs.c.digest.is_(None) & (packs.c.named_at < now - UPLOAD)
    old = or_(packs.c.named_at < now - KEPT, unfinished)
    with no_change(), context.database.write() as connection:
        # The rows are locked and checked again, so a concurrent job either keeps its pack or finds
        # the pack deleted.
        query = select(packs.c.id).where(old, unnamed).limit(4).with_for_update(skip_locked=True)
        ids = connection.scalars(query).all()
        connection.execute(delete(packs).where(packs.c.id.in_(ids), old, unnamed))


def _touched(
    context: Context, connection: Connection, digest: str, *, actor: Actor
) -> tuple[str, int] | None:
    """Renew a usable pack, return its id and size, and lock its row until the transaction ends."""
    known = and_(packs.c.digest == digest, _usable(actor))
    connection.execute(update(packs).where(known).values(named_at=context.now()))
    row = connection.execute(select(packs.c.id, packs.c.size).where(known)).one_or_none()
    return None if row is None else (row.id, row.size)


def _unknown(digest: str) -> InvalidRequestError:
    return InvalidRequestError.at(
        "/program/code/pack",
        f"pack={digest!r} is not on this server; `trainyard submit` uploads it. A pack that no job "
        "has named for a day is deleted",
    )

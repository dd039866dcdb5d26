"""The bytes that reports bring: unpacked, cut at what is stored, and acknowledged by offsets."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, insert, select, update

from server.database.tables import spool_offsets
from server.errors import InvalidRequestError
from trainyard.protocol.worker_messages import MAX_CHUNK_BYTES, Chunk

MAX_CONTENT_BYTES = 4 * MAX_CHUNK_BYTES
"""Most bytes that the chunks of one report may hold together."""
MAX_OFFSET = 2**62


@dataclass(frozen=True)
class SpoolBytes:
    """Some bytes of one file."""

    pointer: str
    """JSON pointer to the chunk that brought them."""
    file: str
    start: int
    content: bytes

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self.start + len(self.content)

    def after(self, offset: int) -> SpoolBytes:
        """Return what comes after the first `offset` bytes of the file."""
        cut = max(offset - self.start, 0)
        return SpoolBytes(self.pointer, self.file, self.start + cut, self.content[cut:])


def unpack(chunks: Sequence[Chunk]) -> list[SpoolBytes]:
    """Return the bytes of a report's chunks.

    Raises:
        InvalidRequestError: one is no base64 or zlib, holds other than `end - start` bytes, or the
            report holds more bytes than it may.
    """
    total = sum(chunk.end - chunk.start for chunk in chunks)
    if total > MAX_CONTENT_BYTES:
        raise InvalidRequestError.at(
            "/chunks", f"{total} bytes in one report; at most {MAX_CONTENT_BYTES}"
        )
    return [_unpack(f"/chunks/{index}", chunk) for index, chunk in enumerate(chunks)]


def fresh(pieces: Iterable[SpoolBytes], offsets: Mapping[str, int]) -> list[SpoolBytes]:
    """Return what is not stored yet, in order: overlaps are cut, what follows a gap is left out."""
    reached = dict(offsets)
    new = []
    for piece in pieces:
        offset = reached.get(piece.file, 0)
        if piece.start <= offset < piece.end:
            new.append(piece.after(offset))
            reached[piece.file] = piece.end
    return new


def read_offsets(connection: Connection, attempt_id: str, node: str) -> dict[str, int]:
    """Return the offset up to which each file of a node's share is stored."""
    columns = spool_offsets.c
    query = select(columns.file, columns.acknowledged).where(
        columns.attempt_id == attempt_id, columns.node == node
    )
    return {row.file: row.acknowledged for row in connection.execute(query)}


def write_offsets(
    connection: Connection,
    attempt_id: str,
    node: str,
    *,
    before: Mapping[str, int],
    pieces: Iterable[SpoolBytes],
) -> None:
    """Acknowledge pieces that this very transaction stores."""
    columns = spool_offsets.c
    ends = {piece.file: piece.end for piece in pieces}
    key = {"attempt_id": attempt_id, "node": node}
    if new := [
        {**key, "file": f, "acknowledged": end} for f, end in ends.items() if f not in before
    ]:
        connection.execute(insert(spool_offsets), new)
    if old := [{"name": f, "end": end} for f, end in ends.items() if f in before]:
        connection.execute(
            update(spool_offsets)
            .where(
                columns.attempt_id == attempt_id,
                columns.node == node,
                columns.file == bindparam("name"),
            )
            .values(acknowledged=bindparam("end")),
            old,
        )


def _unpack(pointer: str, chunk: Chunk) -> SpoolBytes:
    size = chunk.end - chunk.start
    if not 0 <= size <= MAX_CHUNK_BYTES or chunk.end > MAX_OFFSET:
        raise InvalidRequestError.at(
            f"{pointer}/end",
            f"{chunk.end} after start={chunk.start}: a chunk holds up to {MAX_CHUNK_BYTES} bytes",
        )
    try:
        content = _inflated(base64.b64decode(chunk.content, validate=True), limit=size + 1)
    except (ValueError, zlib.error) as error:
        raise InvalidRequestError.at(
            f"{pointer}/content", f"is no zlib stream in base64: {error}"
        ) from None
    if len(content) != size:
        found = f"more than {size}" if len(content) > size else str(len(content))
        raise InvalidRequestError.at(
            f"{pointer}/content", f"holds {found} bytes, but end - start = {size}"
        )
    return SpoolBytes(pointer, chunk.file, chunk.start, content)


def _inflated(packed: bytes, *, limit: int) -> bytes:
    """Return the decompressed bytes, at most `limit`: a bomb goes no further."""
    stream = zlib.decompressobj()
    content = stream.decompress(packed, limit)
    if len(content) < limit and not stream.eof:
        raise ValueError("the stream is cut off")
    if stream.unused_data:
        raise ValueError("bytes follow the stream")
    return content

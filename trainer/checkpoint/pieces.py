"""Reads pieces of tensors straight into memory, and hashes the file meanwhile where asked to."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import torch
import xxhash
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

from trainer.checkpoint.frames import frame_of
from trainer.checkpoint.store import storage_errors
from trainer.checkpoint.transfer import byte_view, memory_of
from trainer.errors import CheckpointError

BLOCK = 2**20
"""Bytes that are read at once: few calls, and still in the cache when they are hashed."""


@dataclass
class Piece:
    """What one item of a file holds, and where it is to go."""

    place: _StorageInfo
    """Where it lies in the file."""
    chunk: ChunkStorageMetadata
    """What part of its tensor it is."""
    dtype: torch.dtype
    """Type of its numbers."""
    requests: list[ReadItem] = field(default_factory=list)
    """What is wanted of it."""

    @property
    def size(self) -> int:
        """Bytes of its numbers."""
        return math.prod(self.chunk.sizes) * self.dtype.itemsize


def read_pieces(
    path: Path, pieces: Iterable[Piece], planner: LoadPlanner, *, digest: str | None
) -> None:
    """Read a file from start to end, its pieces into the tensors that want them.

    A piece that is wanted whole goes where it belongs without a copy.

    Args:
        path: the file.
        pieces: what is wanted of it.
        planner: knows the tensors.
        digest: XXH3-128 that the whole file must have; only the pieces are read if None.

    Raises:
        CheckpointError: the file cannot be read, is damaged, or was written by another format.
    """
    with storage_errors("read", path), path.open("rb", buffering=0) as file:
        reading = _Reading(file, path, hashing=digest is not None)
        for piece in sorted(pieces, key=lambda piece: piece.place.offset):
            _read(reading, piece, planner)
        if digest is not None:
            reading.check(digest)


def _read(reading: _Reading, piece: Piece, planner: LoadPlanner) -> None:
    frame = frame_of(piece.dtype, piece.chunk.sizes)
    reading.go_to(piece.place.offset)
    head = reading.take(min(len(frame.head), piece.place.length))
    same_length = piece.place.length == len(frame.head) + piece.size + len(frame.tail)
    framed = same_length and head == frame.head
    target = _direct_target(piece, planner) if framed else None
    if target is not None:
        reading.fill(memory_of(byte_view(target)))
        planner.commit_tensor(piece.requests[0], target)
        return
    if framed:
        whole = torch.empty(piece.chunk.sizes, dtype=piece.dtype)
        reading.fill(memory_of(byte_view(whole)))
    else:
        whole = _unframed(reading, piece, head)
    for request in piece.requests:
        part = narrow_tensor_by_index(whole, request.storage_offsets, request.lengths)
        target = planner.resolve_tensor(request).detach()
        target.copy_(part)
        planner.commit_tensor(request, target)


def _unframed(reading: _Reading, piece: Piece, head: bytes) -> Tensor:
    """Return a piece as another version of torch wrote it, or with other strides."""
    content = head + reading.take(piece.place.length - len(head))
    try:
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        fits = (found.dtype, found.shape) == (piece.dtype, piece.chunk.sizes)
    except Exception as error:  # damaged bytes raise whatever they like
        raise reading.error(f"is damaged, or of another format: {error}") from error
    if not fits:
        raise reading.error(f"is damaged: it has no {piece.dtype} {tuple(piece.chunk.sizes)}")
    assert isinstance(found, Tensor)
    return found


def _direct_target(piece: Piece, planner: LoadPlanner) -> Tensor | None:
    """Return the memory that wants all of a piece as it lies, if there is one."""
    request = piece.requests[0]
    if len(piece.requests) > 1 or tuple(request.lengths) != tuple(piece.chunk.sizes):
        return None
    target = planner.resolve_tensor(request).detach()
    fits = target.is_cpu and target.is_contiguous() and target.dtype == piece.dtype
    return target if fits else None


class _Reading:
    """A file that is read forwards; what is left out is read too where the whole is hashed."""

    def __init__(self, file: BinaryIO, path: Path, *, hashing: bool) -> None:
        self._file = file
        self._path = path
        self._hash = xxhash.xxh3_128() if hashing else None
        self._at = 0
        self._scratch = memoryview(bytearray(BLOCK))

    def go_to(self, offset: int) -> None:
        if self._hash is None:
            self._file.seek(offset)
            self._at = offset
        while self._at < offset:
            self.fill(self._scratch[: min(BLOCK, offset - self._at)])

    def take(self, size: int) -> bytes:
        taken = bytearray(size)
        self.fill(memoryview(taken))
        return bytes(taken)

    def fill(self, memory: memoryview) -> None:
        left = memory
        while left:
            count = self._file.readinto(left[:BLOCK])  # type: ignore[attr-defined]
            if not count:
                raise self.error(f"ends at byte {self._at:,}")
            if self._hash is not None:
                self._hash.update(left[:count])
            left = left[count:]
            self._at += count

    def check(self, digest: str) -> None:
        assert self._hash is not None
        while count := self._file.readinto(self._scratch):  # type: ignore[attr-defined]
            self._hash.update(self._scratch[:count])
        if (found := self._hash.hexdigest()) != digest:
            raise self.error(f"is damaged: its checksum is {found} instead of {digest}")

    def error(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path} {what}", path=str(self._path))

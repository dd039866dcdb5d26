"""Reads requested slices directly into their tensors, and hashes the file at the same time."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from functools import lru_cache
from io import FileIO
from operator import mul

import torch
import xxhash
from torch import Tensor

from trainer.checkpoint.chunks.divided_tensor import Sizes
from trainer.checkpoint.chunks.index_file import StoredChunk
from trainer.checkpoint.manifest import check_content
from trainer.checkpoint.tensors import byte_view, frame_of, memory_of
from trainer.errors import CheckpointError
from trainer.storage.download import Download
from trainer.storage.io_errors import storage_errors
from trainer.storage.root import StoragePath
from trainyard.run.checkpoint_faults import CheckpointFault

BLOCK = 2**18
"""Bytes per read of a file that is hashed; they stay in the core's cache until they are hashed."""
LARGE = 2**23
"""Bytes per read of a file that is not hashed."""


LOAD_FAILED = CheckpointFault.LOAD_FAILED


class TensorPiece:
    """A stored chunk of a tensor, and the requested slice of it."""

    def __init__(
        self,
        chunk: StoredChunk,
        dtype: torch.dtype,
        *,
        start: Sizes,
        lengths: Sizes,
        target: Tensor,
    ) -> None:
        """Compute which bytes of the chunk are needed.

        Args:
            chunk: place, offsets and sizes of the chunk.
            dtype: dtype of the chunk's elements.
            start: first requested index in each dimension of the chunk.
            lengths: number of requested elements in each dimension.
            target: tensor of shape `lengths` that receives the elements.
        """
        self.chunk = chunk
        self.dtype = dtype
        self.target = target
        self.frame = frame_of(dtype, torch.Size(chunk.sizes))
        """Bytes that `torch.save`'s format puts before and after the elements."""
        self.strides = _strides(chunk.sizes)
        self.first = sum(map(mul, self.strides, start))
        """Index of the first needed element, in the order of the file."""
        self.end = self.first + sum(map(mul, self.strides, lengths)) - sum(self.strides) + 1
        """Index after the last needed element.

        A slice of columns is read with the elements between its rows, because many small reads
        would take longer.
        """

    @property
    def size(self) -> int:
        """Size of the whole chunk, in bytes, in a file that `ChecksumWriter` wrote."""
        numbers = math.prod(self.chunk.sizes) * self.dtype.itemsize
        return len(self.frame.head) + numbers + len(self.frame.tail)


@lru_cache(maxsize=65_536)
def _strides(sizes: Sizes) -> Sizes:
    """Return the strides of a contiguous tensor, in elements."""
    return tuple(math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))


def read_pieces(
    path: StoragePath, pieces: Iterable[TensorPiece], *, digest: str, verifies: bool
) -> int:
    """Read the requested slices of a file directly into their target tensors.

    Contiguous rows are read without a copy. Returns the number of bytes read.

    Args:
        path: path of the file.
        pieces: chunks with requested slices.
        digest: XXH3-128 of the whole file.
        verifies: whether to read the whole file and compare its digest. If false, only the pieces
            are read. If a piece must be parsed, the digest is always verified first.

    Raises:
        CheckpointError: the file cannot be read, is damaged, or was written in another format.
    """
    with storage_errors("read", path), path.open("rb", buffering=0) as file:
        reading = _Reading(file, path, digest, hashing=verifies)
        # In the order of the file: the hash needs every byte, in sequence.
        for piece in sorted(pieces, key=lambda piece: piece.chunk.offset):
            _read(reading, piece)
        if verifies:
            reading.check()
        return reading.count


def _read(reading: _Reading, piece: TensorPiece) -> None:
    chunk, target = piece.chunk, piece.target
    reading.go_to(chunk.offset)
    head = reading.take(min(len(piece.frame.head), chunk.length))
    # This piece has another torch version's format or other strides, so `torch.load` parses it.
    if head != piece.frame.head or chunk.length != piece.size:
        _fill_from(_unframed(reading, piece, head).reshape(-1), 0, piece)
        return
    direct = _takes_bytes(piece)
    memory = target if direct else torch.empty(piece.end - piece.first, dtype=piece.dtype)
    reading.go_to(chunk.offset + len(head) + piece.first * piece.dtype.itemsize)
    reading.fill(memory_of(byte_view(memory)))
    if not direct:
        _fill_from(memory, piece.first, piece)


def _takes_bytes(piece: TensorPiece) -> bool:
    """Return whether the needed elements can be read into the target without conversion."""
    target = piece.target
    contiguous = target.is_contiguous() and target.numel() == piece.end - piece.first
    return contiguous and target.is_cpu and target.dtype == piece.dtype


def _fill_from(numbers: Tensor, first: int, piece: TensorPiece) -> None:
    """Copy the requested slice to the target from `numbers`, which begins at element `first`."""
    target = piece.target
    target.copy_(numbers.as_strided(target.shape, piece.strides, piece.first - first))


def _unframed(reading: _Reading, piece: TensorPiece, head: bytes) -> Tensor:
    """Parse, with `torch.load`, a piece in another torch version's format or with unusual
    strides."""
    content = head + reading.take(piece.chunk.length - len(head))
    reading.check_before_parsing()
    try:
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        fits = (found.dtype, tuple(found.shape)) == (piece.dtype, piece.chunk.sizes)
    except Exception as error:  # damaged bytes can raise any exception
        raise reading.error(f"is of another format: {error}", LOAD_FAILED) from error
    if not fits:
        what = f"{piece.dtype} {piece.chunk.sizes}"
        raise reading.error(f"is whole, but does not hold {what} where it should", LOAD_FAILED)
    assert isinstance(found, Tensor)
    return found


class _Reading:
    """A file that is read sequentially; with hashing, skipped bytes are read too."""

    def __init__(
        self, file: FileIO | Download, path: StoragePath, digest: str, *, hashing: bool
    ) -> None:
        self._file = file
        self._path = path
        self._digest = digest
        self._is_whole = False
        self._hash = xxhash.xxh3_128() if hashing else None
        self._block = BLOCK if hashing else LARGE
        self._at = 0
        self._scratch = memoryview(bytearray(BLOCK))
        self.count = 0
        """Number of bytes read so far."""

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
            block = left[: self._block]
            count = self._file.readinto(block)
            if not count:
                raise self.error(f"ends at byte {self._at:,}", CheckpointFault.FILE_SIZE)
            if self._hash is not None:
                self._hash.update(block[:count])
            left = left[count:]
            self._at += count
            self.count += count

    def check_before_parsing(self) -> None:
        if not self._is_whole:
            check_content(self._path, self._digest)
            self._is_whole = True

    def check(self) -> None:
        assert self._hash is not None
        while count := self._file.readinto(self._scratch):
            self._hash.update(self._scratch[:count])
            self.count += count
        if (found := self._hash.hexdigest()) != self._digest:
            what = f"is damaged: its checksum is {found} instead of {self._digest}"
            raise self.error(what, CheckpointFault.FILE_DAMAGED)

    def error(self, what: str, fault: CheckpointFault) -> CheckpointError:
        return CheckpointError(f"{self._path} {what}", path=str(self._path), fault=fault)

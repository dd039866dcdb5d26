"""Read the requested slices directly into their target tensors, and hash the file meanwhile."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from io import FileIO
from operator import mul

import torch
import xxhash
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

from trainer.checkpoint.manifest import check_content
from trainer.checkpoint.tensors import byte_view, frame_of, memory_of
from trainer.errors import CheckpointError
from trainer.storage.download import Download
from trainer.storage.io_errors import storage_errors
from trainer.storage.root import StoragePath
from trainyard.run.checkpoint_faults import CheckpointFault

BLOCK = 2**18
"""Bytes that are read and hashed in turn: they are still in the core's cache for the hash."""
LARGE = 2**23
"""Bytes that are read at once where nothing is hashed."""


LOAD_FAILED = CheckpointFault.LOAD_FAILED


class TensorPiece:
    """A stored chunk of a tensor, and the slices of it that are requested."""

    def __init__(
        self,
        place: _StorageInfo,
        chunk: ChunkStorageMetadata,
        dtype: torch.dtype,
        requests: Sequence[ReadItem],
    ) -> None:
        """Compute which of its bytes are needed.

        Args:
            place: file, offset and length in bytes.
            chunk: offsets and sizes in its tensor.
            dtype: type of its numbers.
            requests: the requested slices, each with its target.
        """
        self.place = place
        self.chunk = chunk
        self.dtype = dtype
        self.requests = requests
        self.frame = frame_of(dtype, chunk.sizes)
        """The bytes before and after its numbers in `torch.save`'s format."""
        self.strides = _strides(chunk.sizes)
        spans = [self.span(request) for request in requests]
        self.first = min(first for first, _ in spans)
        """Index of the first needed number, in the order of the file."""
        self.end = max(end for _, end in spans)
        """Index one past the last needed number.

        Rows are contiguous. The numbers between the rows of a column slice are read too: many
        small reads would take longer.
        """

    def span(self, request: ReadItem) -> tuple[int, int]:
        """Return the indices of the first and one past the last number of a request."""
        first = sum(map(mul, self.strides, request.storage_offsets))
        return first, first + sum(map(mul, self.strides, request.lengths)) - sum(self.strides) + 1

    @property
    def size(self) -> int:
        """Bytes of the piece in a file that `ChecksumWriter` wrote."""
        numbers = math.prod(self.chunk.sizes) * self.dtype.itemsize
        return len(self.frame.head) + numbers + len(self.frame.tail)

    @property
    def bytes_to_read(self) -> int:
        """Bytes that are read where the file is not read whole: head and needed numbers."""
        return len(self.frame.head) + (self.end - self.first) * self.dtype.itemsize


@lru_cache(maxsize=65_536)
def _strides(sizes: torch.Size) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, in numbers."""
    return tuple(math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))


def read_pieces(
    path: StoragePath,
    pieces: Iterable[TensorPiece],
    planner: LoadPlanner,
    *,
    digest: str,
    verifies: bool,
) -> int:
    """Read the requested slices of a file directly into their target tensors.

    Contiguous rows are read without a copy. Returns the number of bytes read.

    Args:
        path: the file.
        pieces: the chunks with requested slices.
        planner: resolves the target tensors.
        digest: XXH3-128 of the whole file.
        verifies: whether the whole file is read and its digest compared; otherwise only the pieces
            are read, unless one must be parsed: no byte is parsed before the digest was compared.

    Raises:
        CheckpointError: the file cannot be read, is damaged, or was written by another format.
    """
    with storage_errors("read", path), path.open("rb", buffering=0) as file:
        reading = _Reading(file, path, digest, hashing=verifies)
        # In the order of the file, which is read once and forwards: the hash needs every byte.
        for piece in sorted(pieces, key=lambda piece: piece.place.offset):
            _read(reading, piece, planner)
        if verifies:
            reading.check()
        return reading.count


def _read(reading: _Reading, piece: TensorPiece, planner: LoadPlanner) -> None:
    reading.go_to(piece.place.offset)
    head = reading.take(min(len(piece.frame.head), piece.place.length))
    # Another version of torch, or other strides: `torch.load` parses the piece.
    if head != piece.frame.head or piece.place.length != piece.size:
        _fill_from(_unframed(reading, piece, head).reshape(-1), 0, piece, planner)
        return
    target = _direct_target(piece, planner)
    memory = torch.empty(piece.end - piece.first, dtype=piece.dtype) if target is None else target
    reading.go_to(piece.place.offset + len(head) + piece.first * piece.dtype.itemsize)
    reading.fill(memory_of(byte_view(memory)))
    if target is None:
        _fill_from(memory, piece.first, piece, planner)
    else:
        planner.commit_tensor(piece.requests[0], target)


def _direct_target(piece: TensorPiece, planner: LoadPlanner) -> Tensor | None:
    """Return the target that takes a piece's needed numbers unchanged; None if they are copied."""
    request, *others = piece.requests
    if others or math.prod(request.lengths) != piece.end - piece.first:
        return None
    target = planner.resolve_tensor(request)
    fits = target.is_cpu and target.is_contiguous() and target.dtype == piece.dtype
    return target if fits else None


def _fill_from(numbers: Tensor, first: int, piece: TensorPiece, planner: LoadPlanner) -> None:
    """Copy each requested slice from a piece's numbers `[n]`, whose first index is `first`."""
    for request in piece.requests:
        start, _ = piece.span(request)
        part = numbers.as_strided(request.lengths, piece.strides, start - first)
        target = planner.resolve_tensor(request)
        target.copy_(part)
        planner.commit_tensor(request, target)


def _unframed(reading: _Reading, piece: TensorPiece, head: bytes) -> Tensor:
    """Return a piece that `torch.load` must parse: of another torch version, or other strides."""
    content = head + reading.take(piece.place.length - len(head))
    reading.check_before_parsing()
    try:
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        fits = (found.dtype, found.shape) == (piece.dtype, piece.chunk.sizes)
    except Exception as error:  # damaged bytes can raise any exception
        raise reading.error(f"is of another format: {error}", LOAD_FAILED) from error
    if not fits:
        what = f"{piece.dtype} {tuple(piece.chunk.sizes)}"
        raise reading.error(f"is whole, but does not hold {what} where it should", LOAD_FAILED)
    assert isinstance(found, Tensor)
    return found


class _Reading:
    """A file that is read forwards; where it is hashed, skipped bytes are read too."""

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
        """Bytes read so far."""

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

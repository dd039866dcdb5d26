"""One rank's part of a save: writes its own chunks, and chunks that other ranks send."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.checkpoint.chunks.divided_tensor import DTYPES, TensorChunk
from trainer.checkpoint.chunks.index_file import file_name
from trainer.checkpoint.chunks.ownership import ALIGNED, WriteShare
from trainer.checkpoint.save_folder import Point, reached
from trainer.checkpoint.tensors import LARGEST_PIECE, byte_view, frame_of, memory_of
from trainer.checkpoint.writer.hashed_file import HashedFile
from trainer.checkpoint.writer.save_plan import SavePlan
from trainer.storage.root import StoragePath
from trainyard.protocol.manifest import ManifestFile, ManifestWriter

BUFFERS = 4
"""Number of buffers per writer: one for receiving, one for writing, and two for hashing."""
TAG = 3  # any number that no other code uses in this group

Stage = Callable[[Mapping[TensorChunk, Tensor]], Mapping[TensorChunk, Tensor]]


class WrittenShare(NamedTuple):
    """The data that a rank has written."""

    file: ManifestFile | None
    """File of the rank, with size and checksum; None if the rank had no chunks to write."""
    record: ManifestWriter | None
    """Number of bytes and duration of the write of that file; None without a file."""
    numbers_bytes: int
    """Size of the elements in that file, in bytes."""


class ChecksumWriter:
    """Writes at most one file per rank, durably, and never over an existing file.

    DCP's own reader can read the file.
    """

    def __init__(
        self, folder: StoragePath, *, group: dist.ProcessGroup, ceiling: int, stage: Stage = dict
    ) -> None:
        """Describe the writer; nothing is written yet.

        Args:
            folder: folder of the new checkpoint; it must exist.
            group: CPU group of all ranks.
            ceiling: maximum memory, in bytes, for shards of other ranks, and for waiting uploads.
            stage: called once with the tensors to write or send; returns the tensors to use, which
                may be copies.
        """
        self._folder = folder
        self._ceiling = ceiling
        self._group = group
        self._piece = piece_bytes(ceiling)
        self._stage = stage
        self._staged: Mapping[TensorChunk, Tensor] = {}

    def write(self, plan: SavePlan) -> WrittenShare:
        """Write this rank's chunks and the received ones; send the chunks that other ranks write.

        Raises:
            CheckpointError: the storage reports an error.
            RuntimeError: a tensor cannot be copied to the host.
        """
        reached(Point.PLANNED, self._folder)
        share = plan.share
        held = [*share.own, *(chunk for chunk, _ in share.sends)]
        self._staged = self._stage({chunk: plan.memory(chunk) for chunk in held})
        reached(Point.STAGED, self._folder)
        started = time.monotonic()
        # A sender is never a writer (`Ownership`), so no two ranks wait for each other here.
        file = self._write_file(plan) if share.written else None
        self._send(share)
        record = None
        if file is not None:
            record = ManifestWriter(
                rank=dist.get_rank(self._group),
                size=file.size,
                files=1,
                write_seconds=time.monotonic() - started,
            )
        reached(Point.PART_WRITTEN, self._folder)
        return WrittenShare(file, record, sum(chunk.bytes for chunk in share.written))

    def _send(self, share: WriteShare) -> None:
        def getter(chunk: TensorChunk) -> Callable[[], Tensor]:
            return lambda: _on_host(self._staged[chunk])

        transfers = [(getter(chunk), chunk.bytes, writer) for chunk, writer in share.sends]
        send(transfers, piece=self._piece, group=self._group)

    def _write_file(self, plan: SavePlan) -> ManifestFile:
        rank, share = dist.get_rank(self._group), plan.share
        receiver = Receiver(
            [(chunk.bytes, source) for chunk, source in share.received],
            piece=self._piece,
            group=self._group,
        )
        try:
            path, expected = self._folder / file_name(rank), plan.index.file_size(rank)
            with HashedFile(path, expected=expected, ceiling=self._ceiling) as file:
                for chunk in share.written:
                    _write(file, chunk, self._contents(chunk, receiver))
                assert file.size == expected, f"the index gives {path} {expected} bytes"
                return file.close()
        finally:
            receiver.drain()  # also after an error, so that senders do not wait for ever

    def _contents(
        self, chunk: TensorChunk, receiver: Receiver
    ) -> Iterable[tuple[memoryview, Callable[[], None]]]:
        if chunk in self._staged:
            content = byte_view(_on_host(self._staged[chunk]))
            return [(memory_of(content), lambda: None)]
        return receiver.pieces(chunk.bytes)


def _write(
    file: HashedFile, chunk: TensorChunk, contents: Iterable[tuple[memoryview, Callable[[], None]]]
) -> None:
    frame = frame_of(DTYPES[chunk.dtype], torch.Size(chunk.sizes))
    file.write(bytes(-file.size % ALIGNED))
    file.write(frame.head)
    for content, release in contents:
        file.write(content, release=release)
    file.write(frame.tail)


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.cpu().contiguous()


def piece_bytes(ceiling: int) -> int:
    """Return the size of a piece in bytes; a writer's buffers together need at most `ceiling`."""
    return max(1, min(LARGEST_PIECE, ceiling // BUFFERS))


def send(
    sends: Sequence[tuple[Callable[[], Tensor], int, int]],
    *,
    piece: int,
    group: dist.ProcessGroup,
) -> None:
    """Send tensors to their writers, in order.

    After a failure, zeros are sent, because the writer waits for the full number of bytes. The
    failure is raised at the end, so the save is never committed.

    Args:
        sends: three values for each tensor: a function that returns the tensor as a contiguous CPU
            tensor, the size in bytes, and the writer.
        piece: bytes per message; equal on both sides.
        group: CPU group of all ranks.
    """
    failure: Exception | None = None
    for get, size, writer in sends:
        content: Tensor | None = None
        try:
            content = byte_view(get()) if failure is None else None
        except Exception as error:  # noqa: BLE001 -- raised below, after the last message
            failure = error
        for start in range(0, size, piece):
            length = min(piece, size - start)
            if content is None:
                part = torch.zeros(length, dtype=torch.uint8)
            else:
                part = content[start : start + length]
            dist.send(part, group_dst=writer, group=group, tag=TAG)
    if failure is not None:
        raise failure


class Receiver:
    """Receives tensors in the order of the sends, and requests one piece ahead.

    All memory, `BUFFERS` pieces, is allocated at construction.
    """

    def __init__(
        self, expected: Sequence[tuple[int, int]], *, piece: int, group: dist.ProcessGroup
    ) -> None:
        """Start receiving.

        Args:
            expected: size of each tensor in bytes, and the rank that sends it.
            piece: bytes per message.
            group: CPU group of all ranks.
        """
        self._group = group
        self._parts = deque(
            (min(piece, size - start), source)
            for size, source in expected
            for start in range(0, size, piece)
        )
        largest = max((size for size, _ in self._parts), default=0)
        self.memory = BUFFERS * largest
        """Size of the buffers in bytes."""
        self._free: queue.Queue[Tensor] = queue.Queue()
        for _ in range(BUFFERS):
            self._free.put(torch.empty(largest, dtype=torch.uint8))
        self._under_way: deque[tuple[dist.Work, Tensor, int]] = deque()
        self._post()

    def pieces(self, size: int) -> Iterator[tuple[memoryview, Callable[[], None]]]:
        """Yield the next tensor's bytes in pieces, each with a function that frees the buffer."""
        while size > 0:
            work, buffer, length = self._under_way.popleft()
            work.wait()
            size -= length
            self._post()

            def release(buffer: Tensor = buffer) -> None:
                self._free.put(buffer)

            yield memory_of(buffer[:length]), release

    def drain(self) -> None:
        """Receive and drop the remaining pieces, so that senders do not wait for ever."""
        while self._under_way:
            work, buffer, _ = self._under_way.popleft()
            work.wait()
            self._free.put(buffer)
            self._post()

    def _post(self) -> None:
        if self._parts and not self._under_way:
            size, source = self._parts.popleft()
            buffer = self._free.get()
            work = dist.irecv(buffer[:size], group_src=source, group=self._group, tag=TAG)
            assert work is not None
            self._under_way.append((work, buffer, size))

"""DCP's storage writer: each rank writes its own shards and those that other ranks send it."""

from __future__ import annotations

import io
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import DEFAULT_SUFFIX, FileSystem, _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.planner import SavePlanner as AnyPlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trainer.checkpoint.save_folder import Point, reached
from trainer.checkpoint.tensors import LARGEST_PIECE, byte_view, frame_of, memory_of
from trainer.checkpoint.writer.hashed_file import HashedFile
from trainer.checkpoint.writer.save_plan import FRAME_BYTES, RoutedPlan, SavePlanner, item_bytes
from trainer.storage.io_errors import storage_errors
from trainer.storage.root import StoragePath
from trainyard.protocol.manifest import ManifestFile, ManifestWriter

ALIGNED = 64
"""Each piece begins at a multiple of these bytes, a cache line.

`torch.save` aligns the numbers to it within a piece. Between equally aligned memory and file the
system copies a fifth faster (reading, on an EPYC)."""

BUFFERS = 4
"""Buffers of a writer: one piece arrives while another one is written and two are hashed."""
TAG = 3  # any number, as long as nothing else on the group uses it

Stage = Callable[[Mapping[MetadataIndex, Tensor]], Mapping[MetadataIndex, Tensor]]


class ChecksumWriter(FileSystemWriter):
    """Writes at most one file a rank, durably, and never over an existing one.

    The file has DCP's own format: DCP's own reader reads it.
    """

    def __init__(
        self, folder: StoragePath, *, group: dist.ProcessGroup, ceiling: int, stage: Stage = dict
    ) -> None:
        """Write nothing yet.

        Args:
            folder: the new checkpoint's folder, which exists.
            group: CPU group of all ranks.
            ceiling: bytes that this rank may use for the shards of others.
            stage: called once with the tensors that this rank writes or sends; returns the ones
                that are written, which may be copies.
        """
        super().__init__(".", overwrite=False, sync_files=False)  # each file is synced here
        self.fs = self._storage = _ChecksumFileSystem()
        self._folder = self.path = folder  # type: ignore[assignment]
        self._ceiling = ceiling
        self._group = group
        self._piece = piece_bytes(ceiling)
        self._stage = stage
        self._staged: Mapping[MetadataIndex, Tensor] = {}
        self._started = 0.0
        self._seconds = 0.0

    @property
    def files(self) -> list[ManifestFile]:
        """Files that this rank wrote, with their checksums."""
        return list(self._storage.written.values())

    @property
    def record(self) -> list[ManifestWriter]:
        """Bytes, files and seconds of this rank's tensor data; empty for a rank without."""
        data = [file for file in self.files if file.path.endswith(DEFAULT_SUFFIX)]
        if not data:
            return []
        size = sum(file.size for file in data)
        rank = dist.get_rank(self._group)
        return [ManifestWriter(rank=rank, size=size, files=len(data), write_seconds=self._seconds)]

    def storage_meta(self) -> StorageMeta:
        """Return an empty record: DCP would store the absolute path and a random id."""
        return StorageMeta()

    def write_data(self, plan: SavePlan, planner: AnyPlanner) -> Future[list[WriteResult]]:
        """Write this rank's items and those that other ranks send; send what other ranks write."""
        assert isinstance(plan, RoutedPlan)
        assert isinstance(planner, SavePlanner)
        reached(Point.PLANNED, self._folder)
        self._take(plan, planner)
        reached(Point.STAGED, self._folder)
        started = time.monotonic()
        # A sender is never a writer (`assign`), so no two ranks wait for each other here.
        results = self._write_file(plan) if plan.items else []
        self._send(plan)
        self._seconds = time.monotonic() - started
        reached(Point.PART_WRITTEN, self._folder)
        written: Future[list[WriteResult]] = Future()
        written.set_result(results)
        return written

    def _take(self, plan: RoutedPlan, planner: SavePlanner) -> None:
        own = [item for item in plan.items if item.index not in plan.received_from]
        items = [*own, *(item for item, _ in plan.sends)]
        self._staged = self._stage({item.index: planner.tensor(item) for item in items})

    def _send(self, plan: RoutedPlan) -> None:
        def getter(item: WriteItem) -> Callable[[], Tensor]:
            return lambda: _on_host(self._staged[item.index])

        transfers = [(getter(item), item_bytes(item), writer) for item, writer in plan.sends]
        send(transfers, piece=self._piece, group=self._group)

    def _write_file(self, plan: RoutedPlan) -> list[WriteResult]:
        name = f"{plan.storage_data.prefix}0{DEFAULT_SUFFIX}"
        received = [item for item in plan.items if item.index in plan.received_from]
        receiver = Receiver(
            [(item_bytes(item), plan.received_from[item.index]) for item in received],
            piece=self._piece,
            group=self._group,
        )
        try:
            expected = sum(item_bytes(item) + FRAME_BYTES for item in plan.items)
            path = self._folder / name
            with HashedFile(path, expected=expected, ceiling=self._ceiling) as file:
                results = [
                    _write(file, item, self._contents(item, receiver), name=name)
                    for item in plan.items
                ]
                self._storage.written[name] = file.close()
        finally:
            receiver.drain()  # also after an error: the senders would wait for ever
        return results

    def _contents(
        self, item: WriteItem, receiver: Receiver
    ) -> Iterable[tuple[memoryview, Callable[[], None]]]:
        if item.index in self._staged:
            content = byte_view(_on_host(self._staged[item.index]))
            return [(memory_of(content), lambda: None)]
        return receiver.pieces(item_bytes(item))


def _write(
    file: HashedFile,
    item: WriteItem,
    contents: Iterable[tuple[memoryview, Callable[[], None]]],
    *,
    name: str,
) -> WriteResult:
    assert item.tensor_data is not None
    frame = frame_of(item.tensor_data.properties.dtype, item.tensor_data.chunk.sizes)
    file.write(bytes(-file.size % ALIGNED))
    start = file.size
    file.write(frame.head)
    for content, release in contents:
        file.write(content, release=release)
    file.write(frame.tail)
    length = file.size - start
    return WriteResult(
        index=item.index, size_in_bytes=length, storage_data=_StorageInfo(name, start, length)
    )


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.cpu().contiguous()


class _ChecksumFileSystem(FileSystem):
    """Where DCP writes its metadata: kept in memory, and written once under its final name."""

    def __init__(self) -> None:
        self.written: dict[str, ManifestFile] = {}
        self._content = io.BytesIO()

    @contextmanager
    def create_stream(self, _path: Any, mode: str) -> Iterator[io.IOBase]:
        assert mode == "wb", "DCP's writer opens files for writing only"
        self._content = io.BytesIO()
        yield self._content

    def rename(self, _path: Any, new_path: Any) -> None:
        with HashedFile(new_path) as file:
            file.write(self._content.getvalue())
            self.written[new_path.name] = file.close()

    def concat_path(self, path: Any, suffix: str) -> Any:
        return path / suffix

    def exists(self, path: Any) -> bool:
        with storage_errors("read", path):
            return bool(path.exists())

    def mkdir(self, path: Any) -> None:
        if isinstance(path, Path):
            super().mkdir(path)


def piece_bytes(ceiling: int) -> int:
    """Return the bytes of a piece, so that a writer's buffers stay below a ceiling, in bytes."""
    return max(1, min(LARGEST_PIECE, ceiling // BUFFERS))


def send(
    sends: Sequence[tuple[Callable[[], Tensor], int, int]],
    *,
    piece: int,
    group: dist.ProcessGroup,
) -> None:
    """Send tensors to their writers, in order.

    After a failure the writer gets zeros: it waits for as many bytes and has no other signal. The
    failure is raised at the end, and the save is never committed.

    Args:
        sends: of each a function that returns it as a contiguous CPU tensor, its bytes, its writer.
        piece: bytes of a message; the same on both ends.
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
    """Receives tensors in the order in which the ranks send them, always one piece ahead.

    It allocates all its memory when it is created: `BUFFERS` pieces.
    """

    def __init__(
        self, expected: Sequence[tuple[int, int]], *, piece: int, group: dist.ProcessGroup
    ) -> None:
        """Begin to receive.

        Args:
            expected: of each tensor its bytes and the rank that sends it.
            piece: bytes of a message.
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
        """Bytes of its buffers."""
        self._free: queue.Queue[Tensor] = queue.Queue()
        for _ in range(BUFFERS):
            self._free.put(torch.empty(largest, dtype=torch.uint8))
        self._under_way: deque[tuple[dist.Work, Tensor, int]] = deque()
        self._post()

    def pieces(self, size: int) -> Iterator[tuple[memoryview, Callable[[], None]]]:
        """Yield the next tensor's bytes by pieces, each with the function that frees its buffer."""
        while size > 0:
            work, buffer, length = self._under_way.popleft()
            work.wait()
            size -= length
            self._post()

            def release(buffer: Tensor = buffer) -> None:
                self._free.put(buffer)

            yield memory_of(buffer[:length]), release

    def drain(self) -> None:
        """Receive and drop the remaining pieces: their senders would wait for ever."""
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

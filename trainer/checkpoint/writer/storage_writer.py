"""DCP's file writer: large direct writes, hashed meanwhile, of whoever is to write."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import DEFAULT_SUFFIX, FileSystem, _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.planner import SavePlanner as AnyPlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trainer.checkpoint.save_phases import Point, reached
from trainer.checkpoint.torch_save_format import frame_of
from trainer.checkpoint.transfer import Receiver, byte_view, memory_of, piece_bytes, send
from trainer.checkpoint.writer.hashed_file import HashedFile
from trainer.checkpoint.writer.save_plan import FRAME_BYTES, RoutedPlan, SavePlanner, item_bytes
from trainer.storage.io_errors import storage_errors
from trainer.storage.root import StoragePath
from trainyard.protocol.manifest import ManifestFile, ManifestWriter

ALIGNED = 64
"""Bytes of a cache line, at a multiple of which each piece begins.

`torch.save` puts the numbers at a multiple of it, counted from there. Between memory and a file
that lie alike the system copies a fifth faster (reading, on an EPYC)."""

Stage = Callable[[Mapping[MetadataIndex, Tensor]], Mapping[MetadataIndex, Tensor]]


class ChecksumWriter(FileSystemWriter):
    """Writes at most one file a rank, durably and never over another one.

    The file is what DCP's own writer would write, so DCP's own reader reads it.
    """

    def __init__(
        self, folder: StoragePath, *, group: dist.ProcessGroup, ceiling: int, stage: Stage = dict
    ) -> None:
        """Write nothing yet.

        Args:
            folder: the new checkpoint's folder, which exists.
            group: CPU group of all ranks.
            ceiling: bytes that this rank may use for the shards of others.
            stage: called once with what this rank writes or sends; returns what is written.
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
        """What this rank wrote of the tensors, and in which time; nothing of a rank without."""
        data = [file for file in self.files if file.path.endswith(DEFAULT_SUFFIX)]
        if not data:
            return []
        size = sum(file.size for file in data)
        rank = dist.get_rank(self._group)
        return [ManifestWriter(rank=rank, size=size, files=len(data), write_seconds=self._seconds)]

    def storage_meta(self) -> StorageMeta:
        """Return nothing: DCP would store the absolute path on this machine and a random id."""
        return StorageMeta()

    def write_data(self, plan: SavePlan, planner: AnyPlanner) -> Future[list[WriteResult]]:
        """Write this rank's items, with those that other ranks send, and send what others write."""
        assert isinstance(plan, RoutedPlan)
        assert isinstance(planner, SavePlanner)
        reached(Point.PLANNED, self._folder)
        self._take(plan, planner)
        reached(Point.STAGED, self._folder)
        started = time.monotonic()
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
            receiver.drain()
        return results

    def _contents(
        self, item: WriteItem, receiver: Receiver
    ) -> Iterable[tuple[memoryview, Callable[[], None]]]:
        if item.index in self._staged:
            content = byte_view(_on_host(self._staged[item.index]))
            return [(memory_of(content), _nothing)]
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


def _nothing() -> None:
    pass


class _ChecksumFileSystem(FileSystem):
    """Where DCP writes its own small file, the metadata: it is written when it has its name."""

    def __init__(self) -> None:
        self.written: dict[str, ManifestFile] = {}
        self._content = io.BytesIO()

    @contextmanager
    def create_stream(self, _path: Any, mode: str) -> Iterator[io.IOBase]:
        assert mode == "wb", "a writer only writes"
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

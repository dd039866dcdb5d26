"""Tensors of a checkpoint and their places, from `index.json` or an old version's `.metadata`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from trainer.checkpoint.chunks.divided_tensor import Sizes, TensorKind
from trainer.checkpoint.chunks.index_file import (
    ChunkIndex,
    StoredChunk,
    parse_index,
    rank_of_file,
)
from trainer.checkpoint.manifest import FilePart
from trainer.checkpoint.reader.metadata import check_cover, read_metadata
from trainer.errors import CheckpointError
from trainer.storage.io_errors import digest, read_small, storage_errors
from trainer.storage.root import StoragePath
from trainyard.protocol.manifest import DCP_METADATA, Manifest, ManifestFile
from trainyard.run.checkpoint_faults import CheckpointFault


class StoredTensors(Protocol):
    """Interface to the stored tensors of a checkpoint."""

    kinds: dict[str, TensorKind | None]
    """Dtype and shape of each tensor, by name; None for an object, which only unpickling could
    read.
    """

    def chunks(self, name: str, offsets: Sizes, sizes: Sizes) -> Iterable[StoredChunk]:
        """Return the stored chunks that overlap a box of a tensor."""

    def check(self, files: Sequence[ManifestFile], part: FilePart) -> None:
        """Reject chunks that do not cover each tensor once, or lie outside of the data files.

        Args:
            files: data files in the manifest.
            part: files that this process checks; without effect for DCP's `.metadata`, which every
                process checks as a whole.

        Raises:
            CheckpointError: a chunk is invalid; the message names its tensor or its file.
        """


def open_index(folder: StoragePath, manifest: Manifest, *, expected_digest: str) -> StoredTensors:
    """Return a checkpoint's stored tensors; the index must have the XXH3-128 `expected_digest`.

    Raises:
        CheckpointError: the index is unreadable, has another digest, or is invalid.
    """
    path = folder / manifest.index
    with storage_errors("read", path):
        content = path.read_bytes() if manifest.index == DCP_METADATA else read_small(path)
    if digest(content) != expected_digest:
        raise CheckpointError(
            f"{path} is another file than the one that was committed: its checksum is "
            f"{digest(content)} instead of {expected_digest}",
            path=str(path),
            fault=CheckpointFault.FILE_DAMAGED,
        )
    if manifest.index == DCP_METADATA:
        return TensorsOfMetadata(read_metadata(content, path), path)
    try:
        return TensorsOfIndex(parse_index(content, manifest.layout), path)
    except ValueError as error:
        raise _refused(f"{path} is refused: {error}", path) from None


class TensorsOfIndex:
    """The tensors of an `index.json`, whose divisions cover each tensor exactly once."""

    def __init__(self, index: ChunkIndex, path: StoragePath) -> None:
        """Store a parsed index; errors name `path`."""
        self.index = index
        self._path = path
        self.kinds: dict[str, TensorKind | None] = {
            name: TensorKind(tensor.kind.dtype, tensor.kind.shape)
            for name, tensor in index.ownership.tensors.items()
        }

    def chunks(self, name: str, offsets: Sizes, sizes: Sizes) -> Iterable[StoredChunk]:
        """Return the stored chunks that overlap a box of a tensor."""
        return self.index.overlapping(name, offsets, sizes)

    def check(self, files: Sequence[ManifestFile], part: FilePart) -> None:
        """Reject files whose length differs from the total length of their chunks."""
        writers = set(self.index.ownership.writers)
        for file in files[part.number :: part.of]:
            rank = rank_of_file(file.path)
            size = self.index.file_size(rank) if rank in writers else 0
            if size != file.size:
                raise _refused(
                    f"{self._path} names a place that is not there: it gives {file.path} "
                    f"{size:,} bytes, and the manifest {file.size:,}",
                    self._path,
                )


class TensorsOfMetadata:
    """The tensors of DCP's `.metadata`."""

    def __init__(self, metadata: Metadata, path: StoragePath) -> None:
        """Store unpickled metadata; errors name `path`."""
        self.metadata = metadata
        self._path = path
        self.kinds: dict[str, TensorKind | None] = {
            name: _kind(entry) for name, entry in metadata.state_dict_metadata.items()
        }

    def chunks(self, name: str, offsets: Sizes, sizes: Sizes) -> Iterable[StoredChunk]:
        """Return the stored chunks that overlap a box of a tensor."""
        entry = self.metadata.state_dict_metadata[name]
        assert isinstance(entry, TensorStorageMetadata)
        shape = (len(entry.chunks), len(offsets))
        low = np.array([c.offsets for c in entry.chunks], dtype=np.int64).reshape(shape)
        high = low + np.array([c.sizes for c in entry.chunks], dtype=np.int64).reshape(shape)
        first = np.array(offsets, dtype=np.int64)
        end = first + np.array(sizes, dtype=np.int64)
        common = np.minimum(high, end) > np.maximum(low, first)
        for number in np.flatnonzero(common.all(axis=1)):
            chunk = entry.chunks[number]
            place = self.metadata.storage_data[MetadataIndex(name, chunk.offsets)]
            yield StoredChunk(
                place.relative_path,
                place.offset,
                place.length,
                tuple(chunk.offsets),
                tuple(chunk.sizes),
            )

    def check(self, files: Sequence[ManifestFile], part: FilePart) -> None:  # noqa: ARG002
        """Reject holes, overlaps, entries outside of the files, and transformed entries."""
        sizes = {file.path: file.size for file in files}
        for place in self.metadata.storage_data.values():
            end = place.offset + place.length
            inside = 0 <= place.offset <= end <= sizes.get(place.relative_path, -1)
            if not inside or place.transform_descriptors:
                raise _refused(f"{self._path} names a place that is not there: {place}", self._path)
        check_cover(self.metadata, self._path)


def _kind(entry: object) -> TensorKind | None:
    if not isinstance(entry, TensorStorageMetadata):
        return None
    return TensorKind(str(entry.properties.dtype).removeprefix("torch."), tuple(entry.size))


def _refused(message: str, path: StoragePath) -> CheckpointError:
    return CheckpointError(message, path=str(path), fault=CheckpointFault.METADATA_REFUSED)

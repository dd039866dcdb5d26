"""DCP's metadata: a pickle that calls nothing, whose chunks cover each tensor exactly once."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from trainer.errors import CheckpointError
from trainer.storage.io_errors import digest, storage_errors
from trainer.storage.root import StoragePath
from trainyard.run.checkpoint_faults import CheckpointFault

# A pickle names what it wants called; these are the names that DCP writes, and nothing else has
# one. None of them does more than hold its arguments.
_CLASSES: tuple[Any, ...] = (
    metadata.BytesStorageMetadata,
    metadata.ChunkStorageMetadata,
    metadata.Metadata,
    metadata.MetadataIndex,
    metadata.StorageMeta,
    metadata.TensorProperties,
    metadata.TensorStorageMetadata,
    metadata._MEM_FORMAT_ENCODING,
    filesystem._StorageInfo,
    torch.Size,
    torch.serialization._get_layout,
)
_ALLOWED: dict[tuple[str, str], Any] = {
    (allowed.__module__, allowed.__qualname__): allowed for allowed in _CLASSES
} | {
    ("torch", name): value for name, value in vars(torch).items() if isinstance(value, torch.dtype)
}


def load_metadata(path: StoragePath, *, expected_digest: str) -> metadata.Metadata:
    """Return the DCP metadata in a file, whose XXH3-128 must be `expected_digest`.

    Raises:
        CheckpointError: the file is unreadable, is another one, or asks for anything that the
            metadata of a checkpoint does not hold.
    """
    with storage_errors("read", path):
        content = path.read_bytes()
    if digest(content) != expected_digest:
        raise CheckpointError(
            f"{path} is another file than the one that was committed: its checksum is "
            f"{digest(content)} instead of {expected_digest}",
            path=str(path),
            fault=CheckpointFault.FILE_DAMAGED,
        )
    return read_metadata(content, path)


def read_metadata(content: bytes, path: StoragePath) -> metadata.Metadata:
    """Return the DCP metadata in these bytes; `path` is named in errors.

    Raises:
        CheckpointError: as `load_metadata`.
    """
    refused = partial(CheckpointError, path=str(path), fault=CheckpointFault.METADATA_REFUSED)
    try:
        found = _Unpickler(io.BytesIO(content)).load()
    except Exception as error:  # damaged pickles raise whatever they like
        raise refused(f"{path} is refused: {error}") from error
    if not isinstance(found, metadata.Metadata):
        raise refused(f"{path} holds no checkpoint metadata")
    return found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def check_cover(metadata: Metadata, path: StoragePath) -> None:
    """Refuse a tensor whose chunks leave a hole, overlap, lie outside of it or are stored nowhere.

    DCP would leave a hole as it was, and of an overlap take whichever chunk it reads last.

    Raises:
        CheckpointError: the first such tensor, by name; `path` is the metadata's.
    """
    known: dict[object, str | None] = {}  # layers are cut alike
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            continue  # no tensor: the comparison with what is to be filled refuses it
        pattern = (entry.size, tuple((chunk.offsets, chunk.sizes) for chunk in entry.chunks))
        if pattern not in known:
            known[pattern] = _flaw(tuple(entry.size), entry.chunks)
        flaw = known[pattern] or _unstored(name, entry, metadata)
        if flaw is not None:
            raise CheckpointError(
                f"{path}: {name} has {prod(entry.size):,} elements, but {flaw}",
                path=str(path),
                fault=CheckpointFault.TENSOR_INCOMPLETE,
            )


def _flaw(size: tuple[int, ...], chunks: Sequence[ChunkStorageMetadata]) -> str | None:
    """Return why boxes do not make up a tensor of this size exactly once; None if they do.

    Boxes that lie inside, of which no two overlap, and that hold as many elements in all.
    """
    if any(len(c.offsets) != len(size) or len(c.sizes) != len(size) for c in chunks):
        return f"a chunk has other dimensions than {size}"
    low = np.array([tuple(c.offsets) for c in chunks], dtype=np.int64).reshape(
        len(chunks), len(size)
    )
    sizes = np.array([tuple(c.sizes) for c in chunks], dtype=np.int64).reshape(
        len(chunks), len(size)
    )
    if (low < 0).any() or (sizes < 0).any() or (low + sizes > np.array(size, dtype=np.int64)).any():
        return "a chunk lies outside of it"
    filled = (sizes > 0).all(axis=1)
    low, high = low[filled], (low + sizes)[filled]
    for index in range(len(low) - 1):  # row by row: all pairs at once would take n x n memory
        ahead = (low[index] < high[index + 1 :]) & (low[index + 1 :] < high[index])
        if ahead.all(axis=1).any():
            return "two of its chunks overlap"
    held = sum(prod(c.sizes) for c in chunks)
    return None if held == prod(size) else f"its chunks hold {held:,}"


def _unstored(name: str, entry: TensorStorageMetadata, metadata: Metadata) -> str | None:
    stored = metadata.storage_data
    missing = [c for c in entry.chunks if MetadataIndex(name, c.offsets) not in stored]
    return f"its chunk at {tuple(missing[0].offsets)} is stored nowhere" if missing else None

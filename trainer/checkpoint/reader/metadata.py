"""Reads DCP's metadata, which is a pickle, without letting it call anything."""

from __future__ import annotations

import io
import pickle
from functools import partial
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata

from trainer.checkpoint.store import digest, storage_errors
from trainer.errors import CheckpointError
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

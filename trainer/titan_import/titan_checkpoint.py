"""Reads a checkpoint folder of torchtitan: its index without executing it, then its tensors."""

from __future__ import annotations

import io
import os
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from trainer.checkpoint.chunks.divided_tensor import TensorKind
from trainer.checkpoint.manifest import WHOLE
from trainer.checkpoint.reader.metadata import read_metadata
from trainer.checkpoint.reader.stored_tensors import TensorsOfMetadata
from trainer.errors import CheckpointError
from trainer.storage.io_errors import open_regular, storage_errors
from trainyard.protocol.manifest import DCP_METADATA, ManifestFile

MAX_METADATA = 2**30
"""Maximum size of `.metadata`, in bytes; each chunk takes 140 bytes."""
MAX_OBJECT = 2**16
"""Maximum size of a stored number, in bytes."""
NO_CHECKSUM = "0" * 32


class TitanCheckpoint:
    """A checkpoint that torchtitan saved in DCP's format."""

    def __init__(self, folder: Path) -> None:
        """Read and check the index; no tensor is read yet.

        Raises:
            CheckpointError: the folder has no `.metadata`; `.metadata` names an object that DCP
                does not write; a chunk lies outside of its tensor, its file or the folder; or the
                storage reports an error.
        """
        self.folder = folder
        path = folder / DCP_METADATA
        with storage_errors("read", path):
            with open_regular(path) as file:
                content = file.read(MAX_METADATA + 1) or b""
            if len(content) > MAX_METADATA:
                raise CheckpointError(f"{path} exceeds {MAX_METADATA:,} bytes", path=str(path))
        self._metadata = read_metadata(content, path)
        try:
            self._stored = TensorsOfMetadata(self._metadata, path)
            self._stored.check(self._files(), WHOLE)
        except CheckpointError:
            raise
        except Exception as error:  # fields of any type can raise any exception
            raise self._refused(f"it is malformed: {str(error)[:300]}") from error
        self.kinds: dict[str, TensorKind | None] = self._stored.kinds
        """Dtype and shape of each tensor, by torchtitan's name; None for an object."""

    def tensor(self, name: str) -> Tensor:
        """Return a whole tensor.

        Raises:
            CheckpointError: a chunk is truncated or is no tensor of the size in the index, or the
                storage reports an error.
        """
        entry = self._metadata.state_dict_metadata[name]
        assert isinstance(entry, TensorStorageMetadata)
        whole = torch.empty(entry.size, dtype=entry.properties.dtype)
        for chunk in self._stored.chunks(name, (0,) * len(entry.size), tuple(entry.size)):
            found = self._read(name, chunk.file, offset=chunk.offset, length=chunk.length)
            part = self._checked(found, name, sizes=chunk.sizes, dtype=whole.dtype)
            places = (slice(o, o + s) for o, s in zip(chunk.offsets, chunk.sizes, strict=True))
            whole[tuple(places)].copy_(part)
        return whole

    def number(self, name: str) -> int | None:
        """Return a stored whole number; None if the checkpoint does not have the name.

        Raises:
            CheckpointError: the value is no whole number from 0, or the storage reports an error.
        """
        value = self.value(name)
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        if value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or value < 0
        ):
            raise self._refused(f"{name} is {str(value)[:40]!r}, not a whole number from 0")
        return value

    def value(self, name: str) -> Any:
        """Return a stored setting, or a tensor with one element; None if there is no such name.

        Raises:
            CheckpointError: the entry cannot be read, or is too large for a setting.
        """
        entry = self._metadata.state_dict_metadata.get(name)
        if entry is None:
            return None
        if isinstance(entry, BytesStorageMetadata):
            place = self._metadata.storage_data.get(MetadataIndex(name))
            if place is None or place.length > MAX_OBJECT:
                raise self._refused(f"{name} is stored nowhere, or takes more than a number does")
            return self._read(name, place.relative_path, offset=place.offset, length=place.length)
        if prod(entry.size) != 1:
            raise self._refused(f"{name} is a tensor {list(entry.size)}, not a number")
        return self.tensor(name)

    def _files(self) -> list[ManifestFile]:
        """Return the data files with their sizes; files outside of the folder are refused."""
        files = []
        names = {place.relative_path for place in self._metadata.storage_data.values()}
        for name in sorted(names):
            path = self.folder / name
            if PurePosixPath(name).name != name or path.is_symlink():
                raise self._refused(f"it names a file elsewhere: {name!r}")
            with storage_errors("read", path), open_regular(path) as file:
                size = file.seek(0, os.SEEK_END)
            files.append(ManifestFile(path=name, size=size, xxh3_128=NO_CHECKSUM))
        return files

    def _read(self, name: str, file: str, *, offset: int, length: int) -> Any:
        path = self.folder / file
        with storage_errors("read", path), open_regular(path) as opened:
            opened.seek(offset)
            content = opened.read(length)
        try:
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged archive can raise any exception
            raise CheckpointError(
                f"{path}: {name} cannot be read: {str(error).splitlines()[0][:300]}", path=str(path)
            ) from error

    def _checked(
        self, found: object, name: str, *, sizes: tuple[int, ...], dtype: torch.dtype
    ) -> Tensor:
        if not isinstance(found, Tensor) or (tuple(found.shape), found.dtype) != (sizes, dtype):
            kind = (
                f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else "no tensor"
            )
            raise self._refused(f"{name} holds {kind}, but the index has {dtype} {list(sizes)}")
        return found

    def _refused(self, message: str) -> CheckpointError:
        path = self.folder / DCP_METADATA
        return CheckpointError(f"{path} is refused: {message}", path=str(path))

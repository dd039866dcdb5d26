"""DCP's file writer, with a checksum computed of each file while it is written."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch
import xxhash
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import StorageMeta

from specs.checkpoint import ManifestFile
from trainer.checkpoint.store import storage_errors


class ChecksumWriter(FileSystemWriter):
    """Writes one file a rank, durably and never over another one; `files` tells what it wrote."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, overwrite=False)
        self.fs = self._storage = _ChecksumFileSystem()

    @property
    def files(self) -> list[ManifestFile]:
        """Files that this rank wrote, with their checksums."""
        return list(self._storage.written.values())

    def storage_meta(self) -> StorageMeta:
        """Return nothing: DCP would store the absolute path on this machine and a random id."""
        return StorageMeta()


@contextmanager
def without_zip_checksums() -> Iterator[None]:
    """Leave out the CRC-32 of `torch.save`: with it a save takes twice as long."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


class _ChecksumFileSystem(FileSystem):
    def __init__(self) -> None:
        self.written: dict[str, ManifestFile] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        assert mode == "wb", "a writer only writes"
        path = Path(path)
        with storage_errors("write", path), path.open("xb") as file:
            stream = _ChecksumStream(file)
            try:
                yield stream
            except RuntimeError:
                # torch.save hides what the system refused behind an error about positions.
                if stream.refused is not None:
                    raise stream.refused from None
                raise
        self.written[path.name] = stream.as_manifest_file(path.name)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        path, new_path = Path(path), Path(new_path)
        with storage_errors("write", new_path):
            path.rename(new_path)
        file = self.written.pop(path.name)
        self.written[new_path.name] = file.model_copy(update={"path": new_path.name})


class _ChecksumStream(io.IOBase):
    """A file that is written from start to end, hashed on the way."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = xxhash.xxh3_128()
        self._size = 0
        self.refused: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        try:
            written = self._file.write(data)
        except OSError as error:
            self.refused = error
            raise
        self._hash.update(data)
        self._size += written
        return written

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def fileno(self) -> int:
        # DCP asks for it in order to call fsync, which reaches only what was flushed.
        self._file.flush()
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    def as_manifest_file(self, name: str) -> ManifestFile:
        return ManifestFile(path=name, size=self._size, xxh3_128=self._hash.hexdigest())

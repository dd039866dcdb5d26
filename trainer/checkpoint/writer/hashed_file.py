"""A new file that is written sequentially while a separate thread hashes it."""

from __future__ import annotations

import io
import os
import queue
import threading
from collections.abc import Callable

import xxhash

from trainer.checkpoint.save_folder import Point, reached
from trainer.storage.io_errors import storage_errors
from trainer.storage.object_path import ObjectPath
from trainer.storage.root import StoragePath
from trainer.storage.upload import Upload
from trainyard.protocol.manifest import ManifestFile

PIECE = 8 * 2**20
"""Bytes per write and per hash update. This is large enough for few system calls, and small enough
that the bytes are still cached when they are hashed.
"""
PIECES_WAITING = 4
"""Maximum number of pieces that wait for the hash; further writes wait, which limits memory."""

Job = tuple[memoryview | bytes, Callable[[], None]]


class HashedFile:
    """A new file; small writes are collected, large ones are not copied.

    Memory passed to `write` must not change until `release` is called, or until `close`.
    """

    def __init__(self, path: StoragePath, *, expected: int = 0, ceiling: int = 2**40) -> None:
        """Create the file; in an object store it appears when it is closed.

        Args:
            path: path of the new file.
            expected: approximate final size in bytes.
            ceiling: maximum memory, in bytes, for parts that wait for upload to an object store.

        Raises:
            CheckpointError: the file cannot be created, for example because it exists.
        """
        self._path = path
        self._file: io.FileIO | Upload
        with storage_errors("write", path):
            if isinstance(path, ObjectPath):
                self._file = Upload(path, expected=expected, ceiling=ceiling)
            else:
                self._file = path.open("xb", buffering=0)
        reached(Point.FILE_MADE, path)
        self._gathered = bytearray()
        self._written = 0
        self._hash = xxhash.xxh3_128()
        self._jobs: queue.Queue[Job | None] = queue.Queue(PIECES_WAITING)
        self._hashing = threading.Thread(target=self._hash_all, name="checksum", daemon=True)
        self._hashing.start()

    @property
    def size(self) -> int:
        """Number of bytes written so far."""
        return self._written + len(self._gathered)

    def write(
        self, data: memoryview | bytes, *, release: Callable[[], None] = lambda: None
    ) -> None:
        """Append bytes.

        Args:
            data: flat view of the bytes.
            release: called once the bytes may change again, for few bytes at once, otherwise in
                another thread; not called if earlier bytes cannot be written.

        Raises:
            CheckpointError: the file cannot be written.
        """
        if len(data) < PIECE // 8:
            self._gathered += data
            release()
            if len(self._gathered) >= PIECE:
                self._flush()
            return
        try:
            self._flush()
            for start in range(0, len(data), PIECE):
                self._put(data[start : start + PIECE])
        finally:
            # Queued last, because the hash must first read all pieces. Also queued after an error,
            # because the owner of the buffer waits.
            self._jobs.put((b"", release))

    def close(self) -> ManifestFile:
        """Make the file durable and return its size and checksum.

        Raises:
            CheckpointError: the file cannot be written.
        """
        self._flush()
        # Sync before the manifest lists the file: `COMMITTED` must cover only durable bytes.
        with storage_errors("write", self._path):
            if isinstance(self._file, Upload):
                self._file.complete()
            else:
                os.fsync(self._file.fileno())
        reached(Point.FILE_SYNCED, self._path)
        self._end()
        return ManifestFile(
            path=self._path.name, size=self._written, xxh3_128=self._hash.hexdigest()
        )

    def __enter__(self) -> HashedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _flush(self) -> None:
        if self._gathered:
            gathered, self._gathered = bytes(self._gathered), bytearray()
            self._put(gathered)

    def _put(self, data: memoryview | bytes) -> None:
        with storage_errors("write", self._path):
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
        self._written += len(data)
        reached(Point.PIECE_WRITTEN, self._path)
        self._jobs.put((data, lambda: None))

    def _hash_all(self) -> None:
        while (job := self._jobs.get()) is not None:
            data, release = job
            self._hash.update(data)
            release()

    def _end(self) -> None:
        if not self._file.closed:
            self._jobs.put(None)
            self._hashing.join()
            self._file.close()

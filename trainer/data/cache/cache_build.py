"""Builds the files of a token cache: processes write parts, and one process joins them.

<key>.parts/<n>.{tokens,starts,json}    finished parts; a restarted build reuses them
<key>.{tokens,documents}.building       the parts joined so far
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from trainer.data.cache.part_files import START, PartFiles, PartRecord, blocks
from trainer.data.cache.part_workers import Pool
from trainer.data.cache.producer import Producer
from trainer.errors import DataError

MAX_PROCESSES = 64


def build(
    folder: Path,
    key: str,
    producer: Producer,
    *,
    processes: int | None,
    lock_fd: int,
    on_progress: Callable[[], None],
) -> Joined:
    """Build the tokens and the starts of documents; reuse finished parts of an earlier build.

    The result depends only on the producer, not on the number of processes.

    Args:
        folder: folder of the cache.
        key: name of the cache.
        producer: source of the tokens.
        processes: number of processes that build parts; None for one process per available core,
            but at most `MAX_PROCESSES`.
        lock_fd: descriptor of the build's lock file. The building processes inherit the descriptor.
            So no other build starts while they write, even if this process dies.
        on_progress: called only after progress.

    Raises:
        DataError: the input is unreadable, damaged or empty, or has changed, or a building process
            was killed; no part is kept.
        OSError: a file cannot be written; finished parts are kept.
    """
    processes = processes or min(len(os.sched_getaffinity(0)), MAX_PROCESSES)
    try:
        joined = Joined(folder, key, producer=producer, on_progress=on_progress)
        _build_parts(
            joined, producer, processes=processes, lock_fd=lock_fd, on_progress=on_progress
        )
        joined.finish()
    except DataError:
        remove_unfinished(folder, key)
        raise
    return joined


def remove_unfinished(folder: Path, key: str) -> None:
    """Remove the intermediate files of a build."""
    for path in _building(folder, key):
        path.unlink(missing_ok=True)
    shutil.rmtree(_parts(folder, key), ignore_errors=True)


def _build_parts(
    joined: Joined,
    producer: Producer,
    *,
    processes: int,
    lock_fd: int,
    on_progress: Callable[[], None],
) -> None:
    parts = producer.parts()
    first = list(islice(parts, 2))
    several = processes > 1 and len(first) > 1
    waiting: deque[tuple[PartFiles, Any]] = deque()
    with (
        Pool(producer, processes, lock_fd=lock_fd, on_progress=on_progress)
        if several
        else nullcontext() as pool
    ):

        def join_next() -> None:
            files, part = waiting.popleft()
            if pool is not None:
                pool.wait(files)
            if not joined.add(files):  # without a pool, or if the part is damaged
                files.write(producer.pieces(part), producer.limit, on_progress)
                assert joined.add(files)

        # Iterate even over unneeded parts: the producer compares the input's identity with the
        # cache's identity only at the end.
        for number, part in enumerate(chain(first, parts)):
            if number < joined.parts or joined.is_full:
                continue
            files = joined.files(number)
            if pool is not None and files.record() is None:
                pool.start(files, part)
            waiting.append((files, part))
            if len(waiting) > (0 if pool is None else pool.ahead):
                join_next()
        while waiting and not joined.is_full:
            join_next()


class Joined:
    """The joined parts: concatenated tokens and starts of documents."""

    def __init__(
        self, folder: Path, key: str, *, producer: Producer, on_progress: Callable[[], None]
    ) -> None:
        self.tokens_path, self.starts_path = _building(folder, key)
        self._folder = _parts(folder, key)
        self._dtype, self._limit = producer.dtype, producer.limit
        self._on_progress = on_progress
        self._begin()
        while (files := self.files(self.parts)).is_joined():
            record = files.record()
            if record is None or not self._holds(record):
                remove_unfinished(folder, key)
                self._begin()
                break

    def _begin(self) -> None:
        self._folder.mkdir(exist_ok=True)
        for path in (self.tokens_path, self.starts_path):
            path.touch()
        self.parts = self.tokens = self.documents = 0
        self.content, self.starts = xxhash.xxh3_128(), xxhash.xxh3_128()
        """Hashes of the tokens and of the starts of documents joined so far."""

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of tokens is reached."""
        return self._limit is not None and self.tokens >= self._limit

    def files(self, number: int) -> PartFiles:
        """Return the files of a part."""
        return PartFiles(self._folder, number, self._dtype)

    def add(self, files: PartFiles) -> bool:
        """Append a finished part and remove its content; return False if unfinished or damaged.

        The hashes and counters change only if the part matches its own digests.
        """
        record = files.record()
        if record is None:
            return False
        left = record.tokens if self._limit is None else self._limit - self.tokens
        tokens_hash, content = xxhash.xxh3_128(), self.content.copy()
        tokens = 0
        with self.tokens_path.open("r+b") as file:
            file.seek(self.tokens * self._dtype.itemsize)
            file.truncate()
            for block in blocks(files.tokens, self._dtype, start=0, count=record.tokens):
                tokens_hash.update(block.data)
                wanted = block[: left - tokens]
                content.update(wanted.data)
                file.write(wanted.data)
                tokens += wanted.size
                self._on_progress()
        starts_hash, starts = xxhash.xxh3_128(), self.starts.copy()
        documents = 0
        with self.starts_path.open("r+b") as file:
            file.seek(self.documents * START.itemsize)
            file.truncate()
            for block in blocks(files.starts, START, start=0, count=record.documents):
                starts_hash.update(block.data)
                wanted = (block[block < left] + self.tokens).astype(START)
                starts.update(wanted.data)
                file.write(wanted.data)
                documents += wanted.size
        if not _is(record, tokens_hash, starts_hash):
            return False
        files.remove_content()
        self._count(tokens, documents, content=content, starts=starts)
        return True

    def finish(self) -> None:
        """Flush both files to the disk.

        Raises:
            DataError: the input contains no token.
        """
        if not self.tokens:
            raise DataError("the input holds no text: every document is empty")
        for path in (self.tokens_path, self.starts_path):
            with path.open("rb") as file:
                os.fsync(file.fileno())

    def _holds(self, record: PartRecord) -> bool:
        """Verify and count a part that an earlier build joined; return False if it is damaged."""
        tokens_hash, content = xxhash.xxh3_128(), self.content.copy()
        for block in blocks(self.tokens_path, self._dtype, start=self.tokens, count=record.tokens):
            tokens_hash.update(block.data)
            content.update(block.data)
            self._on_progress()
        starts_hash, starts = xxhash.xxh3_128(), self.starts.copy()
        for block in blocks(self.starts_path, START, start=self.documents, count=record.documents):
            starts_hash.update(np.ascontiguousarray(block - self.tokens).data)
            starts.update(block.data)
        if not _is(record, tokens_hash, starts_hash):
            return False
        self._count(record.tokens, record.documents, content=content, starts=starts)
        return True

    def _count(
        self, tokens: int, documents: int, *, content: xxhash.xxh3_128, starts: xxhash.xxh3_128
    ) -> None:
        self.parts += 1
        self.tokens += tokens
        self.documents += documents
        self.content, self.starts = content, starts


def _is(record: PartRecord, tokens: xxhash.xxh3_128, starts: xxhash.xxh3_128) -> bool:
    return (tokens.hexdigest(), starts.hexdigest()) == (
        record.tokens_xxh3_128,
        record.starts_xxh3_128,
    )


def _building(folder: Path, key: str) -> tuple[Path, Path]:
    return folder / f"{key}.tokens.building", folder / f"{key}.documents.building"


def _parts(folder: Path, key: str) -> Path:
    return folder / f"{key}.parts"

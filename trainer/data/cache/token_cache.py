"""Token cache of one input on one node: one process builds it, and all processes map it."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import Field

from trainer.data.cache.cache_build import Joined, build, remove_unfinished
from trainer.data.cache.part_files import START
from trainer.data.cache.producer import Producer
from trainer.errors import DataError
from trainyard.base.model_base import RecordModel
from trainyard.run.atomic import replacing

FORMAT_VERSION = 2
POLL_SECONDS = 0.1
CHECKED_BLOCKS, BLOCK_BYTES = 1024, 1 << 20
"""Maximum number and size of the blocks that are read from each file when a cache is opened.
Together they have 1 GiB, which a disk reads in some seconds.
"""


class TokenIndex(RecordModel):
    """`<key>.json`: sizes and digests of the files of a token cache."""

    format_version: int = FORMAT_VERSION
    """Version of the format of the files."""
    dtype: str
    """Dtype of a token in numpy's notation; little-endian."""
    tokens: Annotated[int, Field(ge=0)]
    """Number of tokens in `<key>.tokens`."""
    documents: Annotated[int, Field(ge=0)]
    """Number of documents. `<key>.documents` holds the index of each document's first token."""
    content_xxh3_128: str
    """Digest of all tokens; it is part of the dataset's digest."""
    documents_xxh3_128: str
    """Digest of the starts of documents."""
    check_xxh3_128: str
    """Digest of the other fields and of blocks of both files; verified whenever the cache is
    opened.
    """


@dataclass(frozen=True)
class TokenCache:
    """An open token cache; it stays readable after its files are replaced or removed."""

    tokens: NDArray[Any]
    """All tokens `[n]`, mapped read-only."""
    starts: NDArray[np.int64]
    """Index of the first token of each document, ascending, mapped read-only."""
    digest: str
    """XXH3-128 of the tokens; for equal text it is equal on every node."""
    starts_digest: str
    """XXH3-128 of `starts`."""


def open_token_cache(
    folder: Path,
    key: str,
    producer: Producer,
    *,
    on_progress: Callable[[], None],
    processes: int | None = None,
) -> TokenCache:
    """Open the cache `key`; build it first if it is missing or damaged.

    Any number of processes may call this concurrently: the process that holds the lock builds, and
    the other processes wait. The kernel releases the lock of a killed process, and the next process
    reuses the finished parts. Files are replaced by rename, so earlier processes keep their mapped
    files.

    Args:
        folder: folder of this node's caches; it is created if it is missing.
        key: name of the cache; different content needs a different name.
        producer: source of the tokens.
        on_progress: called after progress, and ten times per second while another process builds.
        processes: number of processes that build; by default, one per available core, at most 64.

    Raises:
        DataError: as for `build`, or the folder cannot be read or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while (cache := _open(folder, key, producer.dtype)) is None:
            with _lock(folder / f"{key}.lock") as lock_fd:
                # Open the cache again, because another process may have built it before this one
                # got the lock.
                if lock_fd is not None and _open(folder, key, producer.dtype) is None:
                    joined = build(
                        folder,
                        key,
                        producer,
                        processes=processes,
                        lock_fd=lock_fd,
                        on_progress=on_progress,
                    )
                    _publish(folder, key, dtype=producer.dtype, joined=joined)
            if lock_fd is None:
                on_progress()
                time.sleep(POLL_SECONDS)
    except OSError as error:
        raise DataError(
            f"the token cache {folder / key} cannot be used: {error.strerror}{_free(folder)}; "
            "make room or name another folder as cache_dir; what is finished is used again",
            path=str(folder),
        ) from error
    return cache


def _open(folder: Path, key: str, dtype: np.dtype[Any]) -> TokenCache | None:
    """Return the cache; None if it is missing or does not match its index."""
    try:
        index = TokenIndex.model_validate_json((folder / f"{key}.json").read_bytes())
        tokens = np.memmap(folder / f"{key}.tokens", dtype=dtype, mode="r")
        starts = np.memmap(folder / f"{key}.documents", dtype=START, mode="r")
    except (FileNotFoundError, ValueError):  # ValueError: no index, or an incomplete token
        return None
    whole = (
        index.format_version == FORMAT_VERSION
        and index.dtype == dtype.str
        and (index.tokens, index.documents) == (tokens.size, starts.size)
        and index.check_xxh3_128 == _check(index, tokens, starts)
    )
    if not whole:
        return None
    return TokenCache(tokens, starts, index.content_xxh3_128, index.documents_xxh3_128)


def _publish(folder: Path, key: str, *, dtype: np.dtype[Any], joined: Joined) -> None:
    """Rename the built files to their final names: the index last, because it marks completion."""
    tokens = np.memmap(joined.tokens_path, dtype=dtype, mode="r")
    starts = np.memmap(joined.starts_path, dtype=START, mode="r")
    index = TokenIndex(
        dtype=dtype.str,
        tokens=tokens.size,
        documents=starts.size,
        content_xxh3_128=joined.content.hexdigest(),
        documents_xxh3_128=joined.starts.hexdigest(),
        check_xxh3_128="",
    )
    index = index.model_copy(update={"check_xxh3_128": _check(index, tokens, starts)})
    with replacing(folder / f"{key}.json", mode=0o666) as file:
        file.write(index.model_dump_json(indent=1).encode())
        file.flush()  # a full disk fails here, so the parts stay for a retry
        joined.tokens_path.replace(folder / f"{key}.tokens")
        joined.starts_path.replace(folder / f"{key}.documents")
    remove_unfinished(folder, key)


def _check(index: TokenIndex, *files: NDArray[Any]) -> str:
    """Return a digest of the index's fields and of at most 1 GiB of each file.

    A file of up to 1 GiB is read whole. Of a larger file, only evenly spaced blocks are read,
    because a start must not read terabytes. The blocks reveal a truncated, partly zeroed or
    replaced file.
    """
    check = xxhash.xxh3_128(index.model_dump_json(exclude={"check_xxh3_128"}).encode())
    for values in files:
        per_block = BLOCK_BYTES // values.itemsize
        blocks = -(-values.size // per_block)
        for block in np.linspace(0, blocks - 1, min(blocks, CHECKED_BLOCKS)).round().astype(int):
            check.update(values[block * per_block : (block + 1) * per_block].data)
    return check.hexdigest()


@contextmanager
def _lock(path: Path) -> Iterator[int | None]:
    """Try to lock a file; yield its descriptor, or None if another process has the lock.

    The kernel releases the lock when the last process with this descriptor ends.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    locked = None
    try:
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = fd
        yield locked
    finally:
        os.close(fd)


def _free(folder: Path) -> str:
    try:
        return f" ({shutil.disk_usage(folder).free / 2**20:.0f} MiB free)"
    except OSError:
        return ""

"""The token file of one input on one node: built once by whoever comes first, mapped by all."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


class TokenIndex(RecordModel):
    """`<key>.json`: what the files beside it hold, and how to know that they are whole."""

    format_version: int = FORMAT_VERSION
    """Version of the files."""
    dtype: str
    """Type of a token, as numpy writes it; little-endian."""
    tokens: Annotated[int, Field(ge=0)]
    """Tokens in `<key>.tokens`."""
    documents: Annotated[int, Field(ge=0)]
    """Documents of which `<key>.documents` tells the first token."""
    content_xxh3_128: str
    """Digest of all the tokens: part of the dataset's digest."""
    documents_xxh3_128: str
    """Digest of where the documents begin."""
    check_xxh3_128: str
    """Digest of the fields above and of the files' blocks, compared at every opening."""


@dataclass(frozen=True)
class TokenCache:
    """An open token cache; stays readable when its files are replaced or removed."""

    tokens: NDArray[Any]
    """All the tokens `[n]`, mapped read-only."""
    starts: NDArray[np.int64]
    """Place of the first token of each document, in ascending order, mapped read-only."""
    digest: str
    """XXH3-128 of the tokens: the same for the same text on every node."""
    starts_digest: str
    """XXH3-128 of the starts."""


def open_token_cache(
    folder: Path,
    key: str,
    producer: Producer,
    *,
    on_progress: Callable[[], None],
    processes: int | None = None,
) -> TokenCache:
    """Open the cache `key`, after building it when it is missing or damaged.

    Any number of processes may call this at the same time: one of them, which holds the lock,
    builds; the others wait. The kernel drops the lock of a killed builder, and the next one goes
    on with what is finished. A new file takes its place by a rename, so whoever has the old one
    mapped keeps it.

    Args:
        folder: where the caches of this node lie; made when missing.
        key: name of the cache; other content must have another name.
        producer: says what the tokens are.
        on_progress: called as the work goes on, and ten times a second while another process does
            it.
        processes: how many build; None: one for each core that this process may use.

    Raises:
        DataError: the input is not what it should be, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while (cache := _open(folder, key, producer.dtype)) is None:
            with _lock(folder / f"{key}.lock") as lock_fd:
                # Look again: another process may have built it before this one got the lock.
                if lock_fd is not None and _open(folder, key, producer.dtype) is None:
                    joined = build(
                        folder,
                        key,
                        producer,
                        processes=processes,
                        lock_fd=lock_fd,
                        on_progress=on_progress,
                    )
                    _publish(folder, key, producer.dtype, joined)
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
    """Return the cache, or None when it is missing or is not what its index says."""
    try:
        index = TokenIndex.model_validate_json((folder / f"{key}.json").read_bytes())
        tokens = np.memmap(folder / f"{key}.tokens", dtype=dtype, mode="r")
        starts = np.memmap(folder / f"{key}.documents", dtype=START, mode="r")
    except (FileNotFoundError, ValueError):  # ValueError: no index, or no whole number of tokens
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


def _publish(folder: Path, key: str, dtype: np.dtype[Any], joined: Joined) -> None:
    """Move what was built to its place, the index last."""
    tokens = np.memmap(joined.tokens_path, dtype=dtype, mode="r")
    starts = np.memmap(joined.starts_path, dtype=START, mode="r")
    index = TokenIndex(
        dtype=dtype.str,
        tokens=tokens.size,
        documents=starts.size,
        content_xxh3_128=joined.content_digest,
        documents_xxh3_128=joined.starts_digest,
        check_xxh3_128="",
    )
    index = index.model_copy(update={"check_xxh3_128": _check(index, tokens, starts)})
    with replacing(folder / f"{key}.json", mode=0o666) as file:
        file.write(index.model_dump_json(indent=1).encode())
        file.flush()  # a full disk is found before a name changes: the parts stay for the next try
        joined.tokens_path.replace(folder / f"{key}.tokens")
        joined.starts_path.replace(folder / f"{key}.documents")
    remove_unfinished(folder, key)


def _check(index: TokenIndex, *files: NDArray[Any]) -> str:
    """Digest the index's fields and up to a GiB of each file, in evenly spaced blocks.

    A file of up to a GiB is covered whole; of a larger one enough is read to notice that it is cut,
    zeroed in part or another file, without reading terabytes at each start.
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
    """Hold the lock file, if nobody else does; the kernel frees it when its holders have ended."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        yield fd if _try_flock(fd) else None
    finally:
        os.close(fd)


def _try_flock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free(folder: Path) -> str:
    try:
        return f" ({shutil.disk_usage(folder).free / 2**20:.0f} MiB free)"
    except OSError:
        return ""

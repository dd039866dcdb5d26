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

from specs.base import RecordModel
from trainer.errors import DataError

FORMAT_VERSION = 2
POLL_SECONDS = 0.1
WRITE_BUFFER_BYTES = 4 << 20
CHECKED_BLOCKS, BLOCK_BYTES = 1024, 1 << 20

START = np.dtype("<i8")


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of one document."""

    tokens: NDArray[Any]
    """Token ids `[n]`."""
    begins: bool
    """Whether the first of them is the first of its document."""


Produce = Callable[[], Iterator[Piece]]


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
    *,
    dtype: np.dtype[Any],
    produce: Produce,
    on_progress: Callable[[], None],
) -> TokenCache:
    """Open the cache `key`, after building it when it is missing or damaged.

    Any number of processes may call this at the same time: one of them, which holds the lock,
    builds; the others wait. The kernel drops the lock of a killed builder, and the next one starts
    over. A new file takes its place by a rename, so whoever has the old one mapped keeps it.

    Args:
        folder: where the caches of this node lie; made when missing.
        key: name of the cache; other content must have another name.
        dtype: type of a token.
        produce: yields the tokens, at least one, in pieces; called by the process that builds.
            The first piece begins a document.
        on_progress: called for each piece while building, and ten times a second while waiting.

    Raises:
        DataError: `produce` raised it, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while (cache := _open(folder, key, dtype)) is None:
            with _lock(folder / f"{key}.lock") as held:
                # Look again: another process may have built it before this one got the lock.
                if held and _open(folder, key, dtype) is None:
                    _build(folder, key, dtype, produce, on_progress)
            if not held:
                on_progress()
                time.sleep(POLL_SECONDS)
    except OSError as error:
        raise DataError(
            f"the token cache {folder / key} cannot be used: {error.strerror}{_free(folder)}; "
            "make room or name another folder as cache_dir",
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


def _build(
    folder: Path,
    key: str,
    dtype: np.dtype[Any],
    produce: Produce,
    on_progress: Callable[[], None],
) -> None:
    """Write the files beside their places and move them there, the index last."""
    building = [folder / f"{key}.{name}.building" for name in ("tokens", "documents", "json")]
    try:
        index = _write(building[0], building[1], dtype, produce, on_progress)
        with building[2].open("wb") as file:
            file.write(index.model_dump_json(indent=1).encode())
            file.flush()
            os.fsync(file.fileno())
        for path in building:
            path.replace(path.with_suffix(""))
    finally:
        for path in building:
            path.unlink(missing_ok=True)


def _write(
    tokens_path: Path,
    starts_path: Path,
    dtype: np.dtype[Any],
    produce: Produce,
    on_progress: Callable[[], None],
) -> TokenIndex:
    """Write tokens and starts, and return the index of what was written."""
    content, documents, size = xxhash.xxh3_128(), xxhash.xxh3_128(), 0
    with (
        tokens_path.open("wb", buffering=WRITE_BUFFER_BYTES) as tokens_file,
        starts_path.open("wb", buffering=WRITE_BUFFER_BYTES) as starts_file,
    ):
        for piece in produce():
            assert piece.tokens.dtype == dtype
            if piece.begins:
                start = np.array([size], dtype=START)
                starts_file.write(start.data)
                documents.update(start.data)
            tokens_file.write(piece.tokens.data)
            content.update(piece.tokens.data)
            size += piece.tokens.size
            on_progress()
        for file in (tokens_file, starts_file):
            file.flush()
            os.fsync(file.fileno())
    tokens = np.memmap(tokens_path, dtype=dtype, mode="r")
    starts = np.memmap(starts_path, dtype=START, mode="r")
    index = TokenIndex(
        dtype=dtype.str,
        tokens=tokens.size,
        documents=starts.size,
        content_xxh3_128=content.hexdigest(),
        documents_xxh3_128=documents.hexdigest(),
        check_xxh3_128="",
    )
    return index.model_copy(update={"check_xxh3_128": _check(index, tokens, starts)})


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
def _lock(path: Path) -> Iterator[bool]:
    """Hold the lock file, if nobody else does; the kernel frees it when the process ends."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        yield _try_flock(fd)
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

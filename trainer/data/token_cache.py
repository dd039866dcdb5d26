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

FORMAT_VERSION = 1
POLL_SECONDS = 0.1
WRITE_BUFFER_BYTES = 4 << 20
CHECKED_BLOCKS, BLOCK_BYTES = 1024, 1 << 20

Produce = Callable[[], Iterator[NDArray[Any]]]


class TokenIndex(RecordModel):
    """`<key>.json`: what the token file beside it holds, and how to know that it is whole."""

    format_version: int = FORMAT_VERSION
    """Version of both files."""
    dtype: str
    """Type of a token, as numpy writes it; little-endian."""
    tokens: Annotated[int, Field(ge=0)]
    """Tokens in the file."""
    content_xxh3_128: str
    """Digest of all the tokens: part of the dataset's digest."""
    check_xxh3_128: str
    """Digest of the fields above and of the file's blocks, compared at every opening."""


@dataclass(frozen=True)
class TokenCache:
    """An open token cache; stays readable when its files are replaced or removed."""

    tokens: NDArray[Any]
    """All the tokens `[n]`, mapped read-only."""
    digest: str
    """XXH3-128 of them: the same for the same text on every node."""


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
    except (FileNotFoundError, ValueError):  # ValueError: no index, or no whole number of tokens
        return None
    whole = (
        index.format_version == FORMAT_VERSION
        and index.dtype == dtype.str
        and index.tokens == tokens.size
        and index.check_xxh3_128 == _check(index.dtype, index.content_xxh3_128, tokens)
    )
    return TokenCache(tokens=tokens, digest=index.content_xxh3_128) if whole else None


def _build(
    folder: Path,
    key: str,
    dtype: np.dtype[Any],
    produce: Produce,
    on_progress: Callable[[], None],
) -> None:
    """Write both files beside their places and move them there, the index last."""
    building = folder / f"{key}.building"
    content = xxhash.xxh3_128()
    try:
        with building.open("wb", buffering=WRITE_BUFFER_BYTES) as file:
            for piece in produce():
                assert piece.dtype == dtype
                file.write(piece.data)
                content.update(piece.data)
                on_progress()
            file.flush()
            os.fsync(file.fileno())
        tokens = np.memmap(building, dtype=dtype, mode="r")
        digest = content.hexdigest()
        index = TokenIndex(
            dtype=dtype.str,
            tokens=tokens.size,
            content_xxh3_128=digest,
            check_xxh3_128=_check(dtype.str, digest, tokens),
        )
        building.replace(folder / f"{key}.tokens")
        with building.open("wb") as file:
            file.write(index.model_dump_json(indent=1).encode())
            file.flush()
            os.fsync(file.fileno())
        building.replace(folder / f"{key}.json")
    finally:
        building.unlink(missing_ok=True)


def _check(dtype: str, content_digest: str, tokens: NDArray[Any]) -> str:
    """Digest the index's fields and up to a GiB of the file, in evenly spaced blocks.

    A file of up to a GiB is covered whole; of a larger one enough is read to notice that it is cut,
    zeroed in part or another file, without reading terabytes at each start.
    """
    check = xxhash.xxh3_128(f"{FORMAT_VERSION} {dtype} {tokens.size} {content_digest}".encode())
    per_block = BLOCK_BYTES // tokens.itemsize
    blocks = -(-tokens.size // per_block)
    for block in np.linspace(0, blocks - 1, min(blocks, CHECKED_BLOCKS)).round().astype(int):
        check.update(tokens[block * per_block : (block + 1) * per_block].data)
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

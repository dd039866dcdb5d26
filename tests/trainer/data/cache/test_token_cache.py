"""The token cache: built once by many processes, and taken over from a killed builder."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from numpy.typing import NDArray

from trainer.data.cache.producer import TokenPiece
from trainer.data.cache.token_cache import (
    BLOCK_BYTES,
    CHECKED_BLOCKS,
    FORMAT_VERSION,
    TokenCache,
    open_token_cache,
)
from trainer.errors import DataError

DTYPE = np.dtype("<u2")
TOKENS = np.arange(5000, dtype=DTYPE)
BEGINS = np.array([0])
PROCESSES = multiprocessing.get_context("forkserver")
OTHERS = 5
"""Processes that wait while one builds."""


STARTS = [0, 1430, 2858, 4286]  # every other one of the 7 pieces starts a document


def pieces(tokens: NDArray[Any] = TOKENS) -> Iterator[TokenPiece]:
    for number, part in enumerate(np.array_split(tokens, 7)):
        yield TokenPiece(part, np.array([0] if number % 2 == 0 else [], dtype=np.int64))


@dataclass(frozen=True)
class OnePart:
    """Yields all tokens as one part."""

    produce: Callable[[], Iterator[TokenPiece]]
    dtype = DTYPE
    limit = None

    def parts(self) -> Iterator[None]:
        yield None

    def pieces(self, part: None) -> Iterator[TokenPiece]:
        return self.produce()


def open_cache(
    folder: Path,
    produce: Callable[[], Iterator[TokenPiece]] = pieces,
    on_progress: Callable[[], None] = lambda: None,
) -> TokenCache:
    return open_token_cache(folder, "k", OnePart(produce), on_progress=on_progress)


def never() -> Iterator[TokenPiece]:
    raise AssertionError("a whole cache is not built again")


# ---- one process --------------------------------------------------------------------------------


def test_the_cache_holds_what_was_produced(tmp_path: Path) -> None:
    built = open_cache(tmp_path / "new/folder")
    opened = open_cache(tmp_path / "new/folder", never)
    for cache in (built, opened):
        assert np.array_equal(cache.tokens, TOKENS)
        assert cache.digest == xxhash.xxh3_128_hexdigest(TOKENS.tobytes())
        assert cache.starts.tolist() == STARTS
        assert cache.starts_digest == xxhash.xxh3_128_hexdigest(np.array(STARTS).tobytes())
        assert not cache.tokens.flags.writeable
        assert not cache.starts.flags.writeable
    names = {p.name for p in (tmp_path / "new/folder").iterdir()}
    assert names == {"k.documents", "k.json", "k.lock", "k.tokens"}


def test_the_digest_does_not_depend_on_the_pieces(tmp_path: Path) -> None:
    whole = open_cache(tmp_path, lambda: iter([TokenPiece(TOKENS, BEGINS)]))
    assert whole.digest == open_cache(tmp_path / "other").digest


def test_progress_is_reported_for_each_piece(tmp_path: Path) -> None:
    calls: list[int] = []
    open_cache(tmp_path, on_progress=lambda: calls.append(1))
    assert len(calls) >= 7


def flip_token(folder: Path) -> None:
    with (folder / "k.tokens").open("r+b") as file:
        file.seek(6000)
        file.write(b"\x01")


def truncate_tokens(folder: Path) -> None:
    os.truncate(folder / "k.tokens", 9000)


def odd_size(folder: Path) -> None:
    os.truncate(folder / "k.tokens", 9999)


def empty_tokens(folder: Path) -> None:
    os.truncate(folder / "k.tokens", 0)


def lengthen_tokens(folder: Path) -> None:
    os.truncate(folder / "k.tokens", 10_002)


def zero_the_tail(folder: Path) -> None:
    os.truncate(folder / "k.tokens", 9000)
    os.truncate(folder / "k.tokens", 10_000)


def remove_tokens(folder: Path) -> None:
    (folder / "k.tokens").unlink()


def remove_index(folder: Path) -> None:
    (folder / "k.json").unlink()


def cut_index(folder: Path) -> None:
    os.truncate(folder / "k.json", 40)


def binary_index(folder: Path) -> None:
    (folder / "k.json").write_bytes(b"\xff\xfe\0")


def change_digest(folder: Path) -> None:
    text = (folder / "k.json").read_text()
    digest = xxhash.xxh3_128_hexdigest(TOKENS.tobytes())
    (folder / "k.json").write_text(text.replace(digest, "0" * 32))


def other_version(folder: Path) -> None:
    text = (folder / "k.json").read_text()
    (folder / "k.json").write_text(
        text.replace(f'"format_version": {FORMAT_VERSION}', '"format_version": 1')
    )


def move_a_document(folder: Path) -> None:
    with (folder / "k.documents").open("r+b") as file:
        file.seek(8)
        file.write(b"\x01")


def drop_a_document(folder: Path) -> None:
    os.truncate(folder / "k.documents", 24)


def remove_documents(folder: Path) -> None:
    (folder / "k.documents").unlink()


DAMAGES = [
    flip_token,
    truncate_tokens,
    odd_size,
    empty_tokens,
    lengthen_tokens,
    zero_the_tail,
    remove_tokens,
    remove_index,
    cut_index,
    binary_index,
    change_digest,
    other_version,
    move_a_document,
    drop_a_document,
    remove_documents,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_cache_is_built_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    good = open_cache(tmp_path).digest
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    damage(tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} != before
    builds: list[int] = []

    def produce() -> Iterator[TokenPiece]:
        builds.append(1)
        return pieces()

    mended = open_cache(tmp_path, produce)
    assert builds == [1]
    assert mended.digest == good
    assert np.array_equal(mended.tokens, TOKENS)


def test_of_a_huge_file_evenly_spaced_blocks_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.data.cache.token_cache.BLOCK_BYTES", 100)
    monkeypatch.setattr("trainer.data.cache.token_cache.CHECKED_BLOCKS", 10)
    open_cache(tmp_path)
    open_cache(tmp_path, never)
    for place, noticed in ((0, True), (9999, True), (150, False)):
        open_cache(tmp_path)
        with (tmp_path / "k.tokens").open("r+b") as file:
            file.seek(place)
            file.write(b"\xee")
        if noticed:
            with pytest.raises(AssertionError, match="not built again"):
                open_cache(tmp_path, never)
        else:
            open_cache(tmp_path, never)
    assert CHECKED_BLOCKS * BLOCK_BYTES == 2**30


def test_readers_keep_what_they_have_when_the_cache_is_replaced(tmp_path: Path) -> None:
    reader = open_cache(tmp_path)
    remove_index(tmp_path)
    other = open_cache(tmp_path, lambda: pieces(TOKENS[::-1].copy()))
    assert np.array_equal(other.tokens, TOKENS[::-1])
    assert np.array_equal(reader.tokens, TOKENS)
    for path in tmp_path.iterdir():
        path.unlink()
    assert np.array_equal(reader.tokens, TOKENS)


def test_a_build_that_fails_leaves_nothing_that_counts(tmp_path: Path) -> None:
    def fail() -> Iterator[TokenPiece]:
        yield TokenPiece(TOKENS, BEGINS)
        raise DataError("the input is bad", path="x")

    with pytest.raises(DataError, match="the input is bad"):
        open_cache(tmp_path, fail)
    assert {p.name for p in tmp_path.iterdir()} == {"k.lock"}
    assert np.array_equal(open_cache(tmp_path).tokens, TOKENS)


def test_a_folder_that_cannot_be_written_is_named_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be used: Not a directory") as caught:
        open_cache(tmp_path / "file/cache")
    assert caught.value.path == str(tmp_path / "file/cache")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device /dev/full")
def test_a_full_disk_is_named_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "k.parts").mkdir()
    (tmp_path / "k.parts/0.tokens").symlink_to("/dev/full")
    with pytest.raises(DataError, match="No space left on device") as caught:
        open_cache(tmp_path)
    assert "MiB free" in str(caught.value)
    assert not (tmp_path / "k.json").exists()


# ---- several processes --------------------------------------------------------------------------


def build_slowly(folder: Path) -> Iterator[TokenPiece]:
    with (folder / "builders").open("a") as file:
        file.write(f"{os.getpid()}\n")
    for piece in pieces():
        time.sleep(0.05)
        yield piece


def start_together(folder: Path, barrier: Barrier) -> None:
    """Open the cache at the same time as the others; store digest and size."""

    def build_watched() -> Iterator[TokenPiece]:
        wait_until(lambda: count(folder, "waiting-*") >= OTHERS)
        yield from build_slowly(folder)

    barrier.wait(timeout=60)
    cache = open_cache(folder, build_watched, (folder / f"waiting-{os.getpid()}").touch)
    (folder / f"seen-{os.getpid()}").write_text(f"{cache.digest} {cache.tokens.size}")


def count(folder: Path, pattern: str) -> int:
    return len(list(folder.glob(pattern)))


def test_processes_that_start_together_build_once(tmp_path: Path) -> None:
    """Waiting processes report too, so that heartbeats continue: the builder waits for a report."""
    every = range(1 + OTHERS)
    barrier = PROCESSES.Barrier(len(every))
    started = [PROCESSES.Process(target=start_together, args=(tmp_path, barrier)) for _ in every]
    for process in started:
        process.start()
    for process in started:
        process.join(timeout=60)
    assert [process.exitcode for process in started] == [0 for _ in every]
    assert len((tmp_path / "builders").read_text().split()) == 1
    seen = [path.read_text().split() for path in tmp_path.glob("seen-*")]
    digest = xxhash.xxh3_128_hexdigest(TOKENS.tobytes())
    assert seen == [[digest, "5000"] for _ in every]


def build_and_hang(folder: Path) -> None:
    """Build, but hang in the middle."""

    def produce() -> Iterator[TokenPiece]:
        yield TokenPiece(TOKENS[:100], BEGINS)
        (folder / "in-the-middle").touch()
        signal.pause()

    open_cache(folder, produce)


def wait_and_take_over(folder: Path) -> str:
    waiting = folder / f"waiting-{os.getpid()}"
    return open_cache(folder, lambda: build_slowly(folder), waiting.touch).digest


def test_another_process_takes_over_from_a_killed_builder(tmp_path: Path) -> None:
    builder = PROCESSES.Process(target=build_and_hang, args=(tmp_path,))
    builder.start()
    wait_until((tmp_path / "in-the-middle").exists)
    with ProcessPoolExecutor(3, mp_context=PROCESSES) as pool:
        others = [pool.submit(wait_and_take_over, tmp_path) for _ in range(3)]
        wait_until(lambda: count(tmp_path, "waiting-*") == 3)
        assert not any(other.done() for other in others)
        builder.kill()
        builder.join(timeout=60)
        assert builder.exitcode == -signal.SIGKILL
        digests = {other.result(timeout=60) for other in others}
    assert digests == {xxhash.xxh3_128_hexdigest(TOKENS.tobytes())}
    assert len((tmp_path / "builders").read_text().split()) == 1
    assert not (tmp_path / "k.parts").exists()


def test_what_a_killed_builder_leaves_does_not_count(tmp_path: Path) -> None:
    builder = PROCESSES.Process(target=build_and_hang, args=(tmp_path,))
    builder.start()
    wait_until((tmp_path / "in-the-middle").exists)
    builder.kill()
    builder.join(timeout=60)
    assert (tmp_path / "k.parts/0.tokens").exists()
    assert np.array_equal(open_cache(tmp_path).tokens, TOKENS)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited for a minute"
        time.sleep(0.01)

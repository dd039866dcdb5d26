"""Building in parts: the same bytes by any number of processes, and finished parts stay."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import xxhash

from trainer.data.cache.producer import TokenPiece
from trainer.data.cache.token_cache import TokenCache, open_token_cache
from trainer.errors import DataError

PARTS = 6
PROCESSES = multiprocessing.get_context("forkserver")


def tokens_of(part: int) -> list[np.ndarray]:
    """Return the pieces of a part: some long, and those of part 3 empty."""
    rng = np.random.default_rng(part)
    sizes = rng.integers(1, 2000, 5) if part != 3 else np.zeros(2, dtype=int)
    return [rng.integers(0, 259, size).astype("<u2") for size in sizes]


@dataclass(frozen=True)
class Parts:
    """Yields random tokens in parts, and leaves a mark for each started part."""

    marks: Path
    limit: int | None = None
    waits_at: int | None = None
    fails_at: int | None = None
    dtype = np.dtype("<u2")

    def parts(self) -> Iterator[int]:
        yield from range(PARTS)

    def pieces(self, part: int) -> Iterator[TokenPiece]:
        with (self.marks / f"begun-{part}").open("a") as file:
            file.write(f"{os.getpid()}\n")
        for tokens in tokens_of(part):
            yield TokenPiece(tokens, np.arange(0, tokens.size, 700))
            if part == self.waits_at:
                (self.marks / "waits").touch()
                time.sleep(3600)
            if part == self.fails_at:
                raise DataError("a bad line", path="x")


def expected() -> np.ndarray:
    return np.concatenate([tokens for part in range(PARTS) for tokens in tokens_of(part)])


def expected_starts() -> list[int]:
    starts: list[int] = []
    size = 0
    for part in range(PARTS):
        for tokens in tokens_of(part):
            starts += range(size, size + tokens.size, 700)
            size += tokens.size
    return starts


def begun(marks: Path) -> dict[int, int]:
    """Return how often each part was started."""
    return {
        int(path.name.removeprefix("begun-")): len(path.read_text().split())
        for path in marks.glob("begun-*")
    }


def build(
    tmp_path: Path,
    parts: Parts | None = None,
    *,
    processes: int = 1,
    on_progress: Callable[[], None] = lambda: None,
) -> TokenCache:
    return open_token_cache(
        tmp_path / "cache",
        "k",
        parts or Parts(tmp_path),
        on_progress=on_progress,
        processes=processes,
    )


@pytest.mark.parametrize("processes", [1, 3])
def test_any_number_of_processes_builds_the_same(tmp_path: Path, processes: int) -> None:
    cache = build(tmp_path, processes=processes)
    assert np.array_equal(cache.tokens, expected())
    assert cache.starts.tolist() == expected_starts()
    assert cache.digest == xxhash.xxh3_128_hexdigest(expected().tobytes())
    assert begun(tmp_path) == dict.fromkeys(range(PARTS), 1)
    names = {path.name for path in (tmp_path / "cache").iterdir()}
    assert names == {"k.documents", "k.json", "k.lock", "k.tokens"}


@pytest.mark.parametrize(
    ("limit", "processes"), [(1, 1), (700, 1), (9_000, 1), (10**6, 1), (700, 2), (9_000, 2)]
)
def test_a_limit_cuts_tokens_and_documents(tmp_path: Path, limit: int, processes: int) -> None:
    cache = build(tmp_path, Parts(tmp_path, limit=limit), processes=processes)
    assert np.array_equal(cache.tokens, expected()[:limit])
    assert cache.starts.tolist() == [s for s in expected_starts() if s < limit]
    if limit <= 700 and processes == 1:
        assert begun(tmp_path) == {0: 1}


def build_until_killed(tmp_path: Path, processes: int, waits_at: int) -> None:
    build(tmp_path, Parts(tmp_path, waits_at=waits_at), processes=processes)


def killed_in_part_4(tmp_path: Path, processes: int) -> None:
    builder = PROCESSES.Process(target=build_until_killed, args=(tmp_path, processes, 4))
    builder.start()
    finished = [tmp_path / f"cache/k.parts/{part}.json" for part in range(4)]
    wait_until(lambda: (tmp_path / "waits").exists() and all(p.exists() for p in finished))
    builder.kill()
    builder.join(timeout=60)
    assert builder.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_after_a_kill_finished_parts_are_used_and_the_rest_is_built(
    tmp_path: Path, before: int, after: int
) -> None:
    killed_in_part_4(tmp_path, before)
    cache = build(tmp_path, processes=after)
    assert np.array_equal(cache.tokens, expected())
    assert cache.starts.tolist() == expected_starts()
    again = begun(tmp_path)
    assert [again[part] for part in range(5)] == [1, 1, 1, 1, 2]


def test_no_process_of_a_killed_builder_lives_on(tmp_path: Path) -> None:
    killed_in_part_4(tmp_path, 2)
    worker = int((tmp_path / "begun-4").read_text())
    wait_until(lambda: not Path(f"/proc/{worker}").exists() or _is_zombie(worker))


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # before it is opened, or before it is read
        return True


def damage_tokens(parts: Path) -> None:
    content = bytearray((parts / "1.tokens").read_bytes())
    content[100] ^= 1
    (parts / "1.tokens").write_bytes(content)


def cut_tokens(parts: Path) -> None:
    os.truncate(parts / "1.tokens", 100)


def lose_starts(parts: Path) -> None:
    os.truncate(parts / "1.starts", 0)


def cut_record(parts: Path) -> None:
    os.truncate(parts / "1.json", 10)


@pytest.mark.parametrize("damage", [damage_tokens, cut_tokens, lose_starts, cut_record])
def test_a_finished_part_that_was_damaged_is_built_again(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    # Part 0 hangs while the other process finishes parts 1 and 2, which wait for their join.
    builder = PROCESSES.Process(target=build_until_killed, args=(tmp_path, 2, 0))
    builder.start()
    parts = tmp_path / "cache/k.parts"
    wait_until(lambda: (parts / "1.json").exists() and (parts / "2.json").exists())
    builder.kill()
    builder.join(timeout=60)
    damage(parts)
    assert np.array_equal(build(tmp_path).tokens, expected())
    assert [begun(tmp_path)[part] for part in range(3)] == [2, 2, 1]


@pytest.mark.parametrize("name", ["k.tokens.building", "k.documents.building"])
@pytest.mark.parametrize("keep", [0, 8])
def test_joined_parts_that_were_damaged_are_built_again(
    tmp_path: Path, name: str, keep: int
) -> None:
    with pytest.raises(DataError, match="cannot be used"):
        full_disk_at(tmp_path, part=4)
    os.truncate(tmp_path / "cache" / name, keep)
    cache = build(tmp_path)
    assert np.array_equal(cache.tokens, expected())
    assert cache.starts.tolist() == expected_starts()
    assert begun(tmp_path)[0] == 2


def full_disk_at(tmp_path: Path, part: int, processes: int = 1) -> None:
    """Build while the disk is full for one of the parts."""
    full = tmp_path / f"cache/k.parts/{part}.tokens"
    full.parent.mkdir(parents=True)
    full.symlink_to("/dev/full")
    try:
        build(tmp_path, processes=processes)
    finally:
        full.unlink(missing_ok=True)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_full_disk_is_told_with_its_remedy_and_the_work_goes_on(
    tmp_path: Path, processes: int
) -> None:
    with pytest.raises(DataError, match="No space left on device") as caught:
        full_disk_at(tmp_path, part=2, processes=processes)
    assert "make room or name another folder as cache_dir" in str(caught.value)
    assert np.array_equal(build(tmp_path, processes=processes).tokens, expected())
    assert [begun(tmp_path)[part] for part in range(3)] == [1, 1, 2]


@pytest.mark.parametrize("processes", [1, 2])
def test_bad_input_is_told_and_nothing_is_kept(tmp_path: Path, processes: int) -> None:
    with pytest.raises(DataError, match="a bad line") as caught:
        build(tmp_path, Parts(tmp_path, fails_at=2), processes=processes)
    assert caught.value.path == "x"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["k.lock"]


def test_a_process_that_is_killed_is_told(tmp_path: Path) -> None:
    def kill_the_worker() -> None:
        worker = tmp_path / "begun-4"
        if (tmp_path / "waits").exists() and worker.exists():
            os.kill(int(worker.read_text()), signal.SIGKILL)
            (tmp_path / "waits").unlink()

    with pytest.raises(DataError, match=r"was killed, most likely because .* memory was full"):
        watch(tmp_path, kill_the_worker)


def watch(tmp_path: Path, act: Callable[[], None]) -> None:
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            act()

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        build(tmp_path, Parts(tmp_path, waits_at=4), processes=2)
    finally:
        ended.set()
        watcher.join()


def test_progress_is_reported_by_several_processes(tmp_path: Path) -> None:
    calls: list[int] = []
    build(tmp_path, processes=2, on_progress=lambda: calls.append(1))
    assert len(calls) >= PARTS - 1  # at least when a part is joined


def test_an_input_without_a_token_is_refused(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Empty(Parts):
        def pieces(self, part: int) -> Iterator[TokenPiece]:
            return iter([])

    with pytest.raises(DataError, match="holds no text: every document is empty"):
        build(tmp_path, Empty(tmp_path))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited for a minute"
        time.sleep(0.01)

"""Atomic files and folders: every failure leaves the earlier state and no draft."""

from __future__ import annotations

import errno
import os
import signal
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainyard.run.atomic import create_file, new_folder, replace_file, replacing, sync_folder


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    """Set the umask of most machines, whatever the caller's."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def _refuse(*_: object, error: int = errno.ENOSPC) -> None:
    raise OSError(error, os.strerror(error))


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_replaced_with_its_new_mode(tmp_path: Path) -> None:
    path = tmp_path / "a"
    replace_file(path, "öne")
    assert (path.read_bytes(), _mode(path)) == ("öne".encode(), 0o644)
    replace_file(path, b"two", mode=0o600)
    assert (path.read_bytes(), _mode(path)) == (b"two", 0o600)
    assert _names(tmp_path) == ["a"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("kept")
    (tmp_path / "a").symlink_to(tmp_path / "secret")
    replace_file(tmp_path / "a", "new")
    assert not (tmp_path / "a").is_symlink()
    assert (tmp_path / "secret").read_text() == "kept"


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_synced_where_it_shall_be_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    replace_file(tmp_path / "a", "text", durable=durable)
    assert len(synced) == durable


def test_a_full_disk_leaves_the_former_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    replace_file(path, "former")
    monkeypatch.setattr(os, "fsync", _refuse)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, "new")
    with pytest.raises(OSError, match="No space left"):
        create_file(tmp_path / "b", "new")
    assert path.read_text() == "former"
    assert _names(tmp_path) == ["a"]


def test_a_writer_that_fails_leaves_the_former_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    replace_file(path, "former")

    def fail() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "former"
    assert _names(tmp_path) == ["a"]


def test_a_file_is_created_once_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert create_file(path, "first", mode=0o600)
    assert not create_file(path, "second")
    assert (path.read_text(), _mode(path)) == ("first", 0o600)
    assert _names(tmp_path) == ["a"]


def test_of_many_that_create_a_file_one_succeeds(tmp_path: Path) -> None:
    path, won = tmp_path / "a", []

    def create(content: str) -> None:
        if create_file(path, content):
            won.append(content)

    threads = [threading.Thread(target=create, args=(str(n) * 10_000,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [path.read_text()]
    assert _names(tmp_path) == ["a"]


def test_a_folder_appears_whole_and_leftovers_go(tmp_path: Path) -> None:
    to = tmp_path / "parent" / "out"
    for killed in (to, other := to.with_name(".out.00000000.partial.too")):
        if (pid := os.fork()) == 0:
            with new_folder(killed) as folder:
                (folder / "file").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
    assert len(_names(to.parent)) == 4
    _, other = sorted(to.parent.glob("*.partial"), key=lambda path: path.name.count("partial"))
    with new_folder(to) as folder:
        (folder / "file").write_text("text")
        assert not to.exists()
    assert (to / "file").read_text() == "text"
    assert set(_names(to.parent)) == {"out", other.name, f"{other.name}.lock"}


def test_a_folder_that_is_being_filled_stays(tmp_path: Path) -> None:
    """Neither a later nor an earlier finished folder removes its files."""
    to = tmp_path / "out"
    one, other = new_folder(to), new_folder(to)
    first = one.__enter__()
    (first / "file").write_text("first")
    with other as second:
        (second / "file").write_text("second")
    assert (first / "file").read_text() == "first"
    with pytest.raises(FileExistsError, match="out"):
        one.__exit__(None, None, None)
    assert (to / "file").read_text() == "second"
    assert _names(tmp_path) == ["out"]


def test_many_writers_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    """Each writes all of its files, whatever the others start and finish meanwhile."""
    ended: list[str] = []

    def write(number: int) -> None:
        for turn in range(10):
            to = tmp_path / f"out-{turn}"
            try:
                with new_folder(to) as folder:
                    for name in "abcd":
                        (folder / name).write_text(str(number))
                    assert _names(folder) == list("abcd")
                ended.append(to.name)
            except FileExistsError:
                pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ended) == _names(tmp_path) == sorted(f"out-{turn}" for turn in range(10))
    assert all(_names(tmp_path / name) == list("abcd") for name in ended)


def test_a_folder_that_fails_is_absent(tmp_path: Path) -> None:
    def fail() -> None:
        with new_folder(tmp_path / "out") as folder:
            (folder / "file").write_text("text")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert _names(tmp_path) == []


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_folder_replaces_nothing(tmp_path: Path, kind: str) -> None:
    to = tmp_path / "out"

    def create() -> None:
        with new_folder(to):
            if kind == "folder":
                to.mkdir()
                (to / "other").touch()
            else:
                to.touch()

    with pytest.raises(FileExistsError, match="out"):
        create()
    assert _names(tmp_path) == ["out"]


def test_a_file_system_without_sync_of_folders_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda _: _refuse(error=errno.EINVAL))
    sync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda _: _refuse(error=errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)

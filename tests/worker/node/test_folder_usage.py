"""The disk space of a folder: counted by blocks, within bounds, and watched in a thread."""

from __future__ import annotations

import os
from pathlib import Path

from tests.worker.conftest import wait_for
from worker.node.folder_usage import FolderWatch, Limit, excess

MIB = 2**20
LIMIT = Limit(4 * MIB, 100)


def test_bytes_on_disk_count_and_holes_do_not(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    with (tmp_path / "inner" / "hole").open("wb") as hole:
        hole.truncate(2**40)
    (tmp_path / "part").write_bytes(os.urandom(3 * MIB))
    assert excess(tmp_path, LIMIT) is None
    (tmp_path / "inner" / "rest").write_bytes(os.urandom(2 * MIB))
    assert excess(tmp_path, LIMIT) == f"{tmp_path} takes more than 4,194,304 bytes of disk"


def test_files_without_content_count_too(tmp_path: Path) -> None:
    for number in range(101):
        (tmp_path / str(number)).symlink_to("/")
    assert excess(tmp_path, LIMIT) == f"{tmp_path} holds more than 100 files and folders"


def test_what_a_link_names_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "large").write_bytes(os.urandom(5 * MIB))
    (tmp_path / "inner" / "link").symlink_to(tmp_path / "outer")
    assert excess(tmp_path / "inner", LIMIT) is None
    assert excess(tmp_path / "nowhere", LIMIT) is None


def test_a_watch_finds_what_grows_and_ends_when_it_is_stopped(tmp_path: Path) -> None:
    watch = FolderWatch(tmp_path, LIMIT, seconds=0.01)
    watch.start()
    (tmp_path / "large").write_bytes(os.urandom(5 * MIB))
    assert "takes more than" in wait_for(lambda: watch.excess, "the excess")
    idle = FolderWatch(tmp_path, LIMIT, seconds=600.0)
    idle.start()
    idle.stop()
    wait_for(lambda: not idle.is_alive, "the end of the watch")

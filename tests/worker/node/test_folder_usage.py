"""The disk space of a folder: counted by blocks, within bounds, and watched in a thread."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.control_plane import disk_of
from tests.other_users import needs_root, open_folder, packages, python_for_others
from tests.worker.conftest import wait_for
from worker.node.folder_usage import FolderWatch, Limit, excess, remove_all_but
from worker.node.users import RankUser

MIB = 2**20
LIMIT = Limit(4 * MIB, 100)
WORKER, USER = 61_990, 61_991


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


def closed(folder: Path, mode: int) -> Path:
    """Make a folder with a large file and these permissions of its owner."""
    private = folder / "private"
    private.mkdir(parents=True)
    (private / "large").write_bytes(os.urandom(5 * MIB))
    private.chmod(mode)
    return private


def counted_by_a_worker(folder: Path, *, user: RankUser | None) -> str:
    """Return the count of a worker that is not root and may change its user."""
    words = (
        "from pathlib import Path; from worker.node.folder_usage import Limit, excess; import os; "
        "from worker.node.users import RankUser; "
        f"print(excess(Path({str(folder)!r}), Limit({LIMIT.size}, 100), user={user!r})); "
        f"assert not os.access({str(folder / 'private' / 'large')!r}, os.R_OK), 'as before'"
    )
    ids = (f"--reuid={WORKER}", f"--regid={WORKER}", "--clear-groups")
    rights = ("--inh-caps=-all,+setuid,+setgid", "--ambient-caps=-all,+setuid,+setgid")
    return subprocess.check_output(
        ["setpriv", *ids, *rights, python_for_others(), "-c", words],
        env={"PYTHONPATH": packages(), "PATH": os.environ["PATH"]},
        text=True,
    ).strip()


@needs_root
@pytest.mark.parametrize("mode", [0o700, 0o000, 0o400], ids=["private", "closed", "names-alone"])
def test_no_folder_is_hidden_from_a_worker_that_is_not_root(mode: int) -> None:
    with open_folder() as place:
        run = place / "run"
        private = closed(run, mode)
        for path in (private, private / "large"):
            os.chown(path, USER, USER)
        os.chown(run, WORKER, USER)
        run.chmod(0o1770)
        unknown = counted_by_a_worker(run, user=None)
        assert unknown.startswith(f"{private} cannot be counted: ")
        found = counted_by_a_worker(run, user=RankUser(uid=USER, groups=()))
        assert found == f"{run} takes more than 4,194,304 bytes of disk"


def test_folders_that_are_nested_too_deep_exceed_every_limit(tmp_path: Path) -> None:
    deepest = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=deepest)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=deepest)
        os.close(deepest)
        deepest = inner
    os.close(deepest)
    assert "cannot be counted: File name too long" in (excess(tmp_path, LIMIT) or "")


@needs_root
def test_what_a_user_wrote_is_removed_but_for_records(tmp_path: Path) -> None:
    user = RankUser(uid=os.geteuid(), groups=())
    (tmp_path / "kept").write_bytes(bytes(2 * MIB))
    (tmp_path / "record").write_text("{}")
    (tmp_path / "false-record").write_bytes(bytes(2 * MIB))
    closed(tmp_path / "inner", 0o000)
    (tmp_path / "outer").symlink_to(tmp_path.parent)
    records = {tmp_path / "record", tmp_path / "false-record"}
    remove_all_but(tmp_path, {tmp_path / "kept"}, records, user=user)
    assert sorted(path.name for path in tmp_path.rglob("*") if not path.is_dir()) == [
        "kept",
        "record",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_lowers_the_limit_to_a_part_of_it(tmp_path: Path) -> None:
    with disk_of("32m", tmp_path / "disk"):
        small, large = tmp_path / "disk" / "small", tmp_path / "disk" / "large"
        for folder, size in ((small, 2 * MIB), (large, 5 * MIB)):
            folder.mkdir()
            (folder / "file").write_bytes(bytes(size))
        watches = [FolderWatch(each, Limit(2**40, 100), seconds=0.01) for each in (small, large)]
        for watch in watches:
            watch.start()
        assert [watch.excess for watch in watches] == [None, None]
        with suppress(OSError), (tmp_path / "disk" / "rest").open("wb", buffering=0) as rest:
            while rest.write(bytes(MIB)):
                pass
        wanted = (
            f"{large} takes more than 3,355,443 bytes of disk, and the disk is about to be full"
        )
        assert wait_for(lambda: watches[1].excess, "the excess") == wanted
        assert watches[0].excess is None
        watches[0].stop()
        wait_for(lambda: not watches[0].is_alive, "the end of the watch")

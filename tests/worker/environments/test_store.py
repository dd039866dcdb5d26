"""The folder of environments: removal, and legal contents."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.other_users import needs_root, open_folder
from tests.worker.nested_folders import nest
from worker.environments.environment_store import EnvironmentStore
from worker.node.users import RankUser, RunAs

DAY = 86_400.0
GIB = 2**30
FIRST, SECOND, THIRD = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def store(tmp_path: Path) -> EnvironmentStore:
    made = EnvironmentStore(tmp_path)
    made.folder.mkdir(mode=0o755)
    return made


def built(store: EnvironmentStore, digest: str, *, idle: float = 0.0, size: int = 1) -> Path:
    """Install an environment that was last used some seconds ago."""
    partial = store.begin(digest)
    (partial / "module.py").write_text("x" * size)
    store.publish(partial, digest, most_bytes=GIB)
    path = store.folder / digest
    at = time.time() - idle
    os.utime(path, (at, at))
    return path


def test_an_environment_that_is_unused_goes(store: EnvironmentStore) -> None:
    built(store, FIRST, idle=31 * DAY)
    kept = built(store, SECOND, idle=29 * DAY)
    assert store.clean(unused_days=30, most_bytes=GIB) == [FIRST]
    assert [path.name for path in store.folder.iterdir()] == [kept.name]


def test_a_look_at_an_environment_is_a_use(store: EnvironmentStore) -> None:
    built(store, FIRST, idle=31 * DAY)
    assert store.find(FIRST) == store.folder / FIRST
    assert store.clean(unused_days=30, most_bytes=GIB) == []


def test_one_that_is_used_as_it_is_removed_stays(
    store: EnvironmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rename = built(store, FIRST, idle=31 * DAY), Path.rename

    def use_first(self: Path, target: Path) -> Path:
        if self == path:
            store.touch(path)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", use_first)
    assert store.clean(unused_days=30, most_bytes=GIB) == []
    assert store.find(FIRST) == path


def test_room_is_made_by_those_that_were_used_least_recently(store: EnvironmentStore) -> None:
    built(store, FIRST, idle=3 * DAY, size=1000)
    built(store, SECOND, idle=2 * DAY, size=1000)
    built(store, THIRD, idle=0, size=5000)  # in use: it stays, though it alone is too large
    assert store.clean(unused_days=30, most_bytes=2**10) == [FIRST, SECOND]
    assert store.find(THIRD) is not None


def test_what_interrupted_builds_left_goes_after_a_day(store: EnvironmentStore) -> None:
    old, new = store.begin(FIRST), store.begin(SECOND)
    os.utime(old, (time.time() - 2 * DAY,) * 2)
    other = store.folder / ".mine"
    other.mkdir()
    store.clean(unused_days=30, most_bytes=GIB)
    assert (old.exists(), new.exists(), other.exists()) == (False, True, True)


def test_a_build_of_deep_folders_is_refused_and_stops_no_later_one(
    store: EnvironmentStore,
) -> None:
    partial = store.begin(FIRST)
    nest(partial)
    with pytest.raises((ValueError, OSError)):  # nested too deep, or the path is too long
        store.publish(partial, FIRST, most_bytes=GIB)
    at = time.time() - 2 * DAY
    os.utime(partial, (at, at))
    assert store.clean(unused_days=30, most_bytes=GIB) == []
    assert not partial.exists()


def test_of_two_builds_the_first_is_put_in_place(store: EnvironmentStore) -> None:
    first = built(store, FIRST, size=3)
    second = store.begin(FIRST)
    store.publish(second, FIRST, most_bytes=GIB)
    assert (first / "module.py").read_text() == "xxx"
    assert not second.exists()


def test_a_build_may_hold_files_folders_and_links_alone(
    store: EnvironmentStore, tmp_path: Path
) -> None:
    of_others = tmp_path / "checkpoint"
    of_others.write_text("weights")
    of_others.chmod(0o660)
    linked = store.begin(FIRST)
    os.link(of_others, linked / "module.py")
    with pytest.raises(ValueError, match=r"module\.py is neither a file of its own, a folder nor"):
        store.publish(linked, FIRST, most_bytes=GIB)
    assert of_others.stat().st_mode & 0o777 == 0o660
    piped = store.begin(FIRST)
    os.mkfifo(piped / "pipe")
    with pytest.raises(ValueError, match="pipe is neither a file of its own"):
        store.publish(piped, FIRST, most_bytes=GIB)
    large = store.begin(FIRST)
    (large / "module.py").write_text("x" * 1000)
    with pytest.raises(ValueError, match=r"legal: at most 2,000,000 and 999"):
        store.publish(large, FIRST, most_bytes=999)
    assert store.find(FIRST) is None


def test_a_link_in_place_of_an_environment_is_refused(
    store: EnvironmentStore, tmp_path: Path
) -> None:
    (store.folder / FIRST).symlink_to(tmp_path)
    with pytest.raises(ValueError, match="has to be a folder of the worker's user"):
        store.find(FIRST)


def test_a_root_in_which_others_could_replace_all_environments_is_refused(
    store: EnvironmentStore,
) -> None:
    path = built(store, FIRST)
    root = store.folder.parent
    root.chmod(0o2770)
    with pytest.raises(ValueError, match=r"others can replace its folder environments; legal: wit"):
        store.find(FIRST)
    root.chmod(0o3770)
    assert store.find(FIRST) == path


def as_rank(user: RankUser, command: str) -> int:
    """Run a command of the shell as a user of ranks; return its status."""
    words = ["/bin/sh", "-c", command]
    done = subprocess.run(
        words, user=user.uid, group=user.uid, extra_groups=user.groups, cwd="/", check=False
    )
    return done.returncode


@needs_root
def test_no_rank_replaces_the_environments_of_a_root() -> None:
    with open_folder() as folder:
        root, data_dir = folder / "checkpoints", folder / "node"
        for made in (root, data_dir):
            made.mkdir()
        run_as = RunAs.parse("nobody:61920-8")
        run_as.prepare_node(slots=4, data_dir=data_dir, shared=[], roots=[root])
        store = EnvironmentStore(root)
        store.folder.mkdir(mode=0o755)
        path = built(store, FIRST)
        user = run_as.free([])
        for command in (
            f"mv {root}/environments {root}/away",
            f"rm -r {path}",
            f"echo evil > {path}/module.py",
            f"mkdir {store.folder}/{SECOND}",
        ):
            assert as_rank(user, command), command
        assert (path / "module.py").read_text() == "x"
        assert store.find(FIRST) == path
        assert as_rank(user, f"mkdir {root}/job") == 0, "its own folder a rank makes as before"


def test_the_folder_is_made_before_a_rank_can_make_it(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        EnvironmentStore(tmp_path).prepare()
    finally:
        os.umask(umask)
    folder = EnvironmentStore(tmp_path).folder
    assert (folder.stat().st_mode & 0o7777, folder.stat().st_uid) == (0o755, os.geteuid())
    folder.chmod(0o700)
    EnvironmentStore(tmp_path).prepare()
    assert folder.stat().st_mode & 0o777 == 0o700, "one that is there stays"

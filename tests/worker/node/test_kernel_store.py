"""Kernel archives on a node: writers, retention and removal."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.other_users import needs_root
from tests.worker.conftest import Place
from trainyard.protocol.attempt import AttemptSpec
from worker.launch import prepare_run
from worker.launchers.base import Share
from worker.node import kernel_store
from worker.node.files import read_record
from worker.node.kernel_store import KernelStore
from worker.node.node_store import WorkerRun
from worker.node.users import RankUser, RunAs

NAME, OTHER = f"{'a' * 64}.zip", f"{'b' * 64}.zip"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "kernels"
    made.mkdir()
    return made


def leave(run: WorkerRun, content: bytes = b"kernels") -> Path:
    """Leave an archive, like the ranks."""
    run.kernels.mkdir(exist_ok=True)
    path: Path = run.kernel_archive
    path.write_bytes(content)
    return path


def test_the_archive_is_kept_once_its_ranks_have_made_it(run: WorkerRun, folder: Path) -> None:
    store = KernelStore(run, str(folder / NAME))
    store.poll()
    assert list(folder.iterdir()) == []
    leave(run)
    store.poll()
    assert (folder / NAME).read_bytes() == b"kernels"
    assert (folder / NAME).stat().st_mode & 0o777 == 0o644
    leave(run, b"changed later")
    store.close()
    assert (folder / NAME).read_bytes() == b"kernels"
    assert not run.kernels.exists()
    assert not run.kernel_archive.exists()


def test_an_attempt_that_ends_soon_leaves_its_archive_too(run: WorkerRun, folder: Path) -> None:
    leave(run)
    KernelStore(run, str(folder / NAME)).close()
    assert (folder / NAME).read_bytes() == b"kernels"


def test_a_job_that_brings_code_leaves_nothing(run: WorkerRun, folder: Path) -> None:
    leave(run)
    store = KernelStore(run, None)
    store.poll()
    store.close()
    assert list(folder.iterdir()) == []
    assert not run.kernels.exists()


def test_an_empty_archive_marks_the_kept_one_as_used(run: WorkerRun, folder: Path) -> None:
    (folder / NAME).write_bytes(b"kernels")
    os.utime(folder / NAME, (1, 1))
    leave(run, b"")
    KernelStore(run, str(folder / NAME)).poll()
    assert (folder / NAME).read_bytes() == b"kernels"
    assert (folder / NAME).stat().st_mtime > 1


def test_an_empty_archive_of_one_that_has_gone_changes_nothing(
    run: WorkerRun, folder: Path
) -> None:
    leave(run, b"")
    KernelStore(run, str(folder / NAME)).poll()
    assert list(folder.iterdir()) == []


def test_no_link_is_followed(run: WorkerRun, folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "node.token"
    secret.write_text("secret")
    run.kernel_archive.symlink_to(secret)
    KernelStore(run, str(folder / NAME)).poll()
    assert list(folder.iterdir()) == []


@needs_root
def test_the_archive_of_another_user_is_refused(run: WorkerRun, folder: Path) -> None:
    os.chown(leave(run), 12_345, 12_345)
    KernelStore(run, str(folder / NAME)).poll()
    assert list(folder.iterdir()) == []


def test_a_command_of_a_person_ends_the_keeping(run: WorkerRun, folder: Path) -> None:
    store = KernelStore(run, str(folder / NAME))
    store.keep_none()
    leave(run)
    store.poll()
    store.close()
    assert list(folder.iterdir()) == []


def test_the_least_recently_used_archives_go(
    run: WorkerRun, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_store, "STORE_BYTES", 15)
    for age, name in enumerate((OTHER, f"{'c' * 64}.zip")):
        (folder / name).write_bytes(bytes(7))
        os.utime(folder / name, (10**9 - age, 10**9 - age))
    leave(run, bytes(7))
    KernelStore(run, str(folder / NAME)).poll()
    assert {path.name for path in folder.iterdir()} == {NAME, OTHER}


def test_what_a_supervisor_that_was_killed_left_half_written_goes(
    run: WorkerRun, folder: Path
) -> None:
    old, new = (folder / f".{OTHER}.{digit * 16}.part" for digit in "12")
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (10**9, 10**9))
    leave(run)
    KernelStore(run, str(folder / NAME)).poll()
    assert set(folder.iterdir()) == {folder / NAME, new}


@pytest.mark.parametrize("bound", ["LARGEST_ARCHIVE", "DATA_DIR_BYTES"])
def test_without_room_nothing_is_kept(
    run: WorkerRun, folder: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    free = shutil.disk_usage(folder).free
    monkeypatch.setattr(kernel_store, bound, 3 if bound == "LARGEST_ARCHIVE" else free * 2)
    leave(run)
    KernelStore(run, str(folder / NAME)).poll()
    assert list(folder.iterdir()) == []


def test_a_disk_that_fills_up_leaves_no_half_archive(
    run: WorkerRun, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / NAME).write_bytes(b"older")

    def fill(source: Any, target: Any) -> None:
        target.write(source.read(3))
        raise OSError("No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", fill)
    leave(run)
    store = KernelStore(run, str(folder / NAME))
    store.poll()
    assert [path.name for path in folder.iterdir()] == [NAME]
    assert (folder / NAME).read_bytes() == b"older"


# ---- what a launch gives to its ranks ------------------------------------------------------------


def prepared(place: Place, *, user: RankUser | None = None, **granted: Any) -> Share:
    """Write the run directory of an attempt, and read it like its supervisor."""
    attempt = place.attempt(place.grant(ranks=1, **granted))
    return Share.read(prepare_run(place.local, attempt.id, attempt.seen.claim, user=user))


def test_ranks_without_code_get_the_archives_and_caches_of_their_own(place: Place) -> None:
    share = prepared(place)
    archive = Path(str(share.attempt.kernel_cache))
    assert archive.parent == place.node.kernels
    assert re.fullmatch(r"[0-9a-f]{64}\.zip", archive.name)
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    own = str(share.run.kernels)
    assert [share.environment[name] for name in names] == [own, f"{own}/triton"]


@pytest.mark.parametrize(
    "spec",
    [
        {"model": {"size": "debug", "factory": "own:build", "code": "data:own"}},
        {"env": {"OWN_SETTING": "1"}},
        {"env": {"TORCHINDUCTOR_CACHE_DIR": "/tmp"}},
    ],
    ids=["model", "variable", "cache"],
)
def test_a_job_that_brings_code_gets_no_archive(place: Place, spec: dict[str, Any]) -> None:
    share = prepared(place, spec=spec)
    assert share.attempt.kernel_cache is None
    own = str(share.run.kernels)
    assert share.environment["TRITON_CACHE_DIR"] == f"{own}/triton"
    assert share.environment["TORCHINDUCTOR_CACHE_DIR"] in (own, "/tmp")


@pytest.mark.parametrize("run_as", [None, "nobody:61920-2"])
def test_a_node_with_code_shares_archives_where_attempts_have_users(
    place: Place, run_as: str | None
) -> None:
    """Without users any program could write the archives themselves."""
    users = None if run_as is None else RunAs.parse(run_as)
    place.local = replace(place.local, allow_code=True, run_as=users)
    assert (prepared(place).attempt.kernel_cache is not None) == (users is not None)


def test_a_program_keeps_the_caches_that_it_chooses(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch sets it in this process
    share = prepared(place, program={"command": ["python", "train.py"]})
    assert share.attempt.kernel_cache is None
    assert "TORCHINDUCTOR_CACHE_DIR" not in share.environment


@needs_root
def test_no_rank_writes_among_the_archives(place: Place) -> None:
    share = prepared(place, user=RankUser(uid=61_920, groups=(61_900,)))
    attempt = read_record(share.run.attempt, AttemptSpec)
    assert attempt is not None
    assert attempt.kernel_cache is not None
    found = Path(attempt.kernel_cache).parent.stat()
    assert (found.st_uid, found.st_mode & 0o777) == (os.geteuid(), 0o755)

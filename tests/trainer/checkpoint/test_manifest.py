"""Manifests and markers as plain files: validity, and the order of their writes."""

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import make_manifest, state_at
from tests.trainer.commits import write_manifest, write_marker
from tests.trainer.points import at_points
from trainer.checkpoint.manifest import committed_manifests, metadata_digest, read_manifest
from trainer.checkpoint.save_folder import Point, create_folder
from trainer.errors import CheckpointError
from trainyard.protocol.manifest import Manifest
from trainyard.run.checkpoints.checkpoint_names import COMMITTED


def _manifest(attempt: int, step: int) -> Manifest:
    return make_manifest("job", attempt, state_at(step))


def _commit(root: Path, attempt: int, step: int) -> Path:
    folder = root / "job" / f"a{attempt}" / f"step-{step}"
    create_folder(folder)
    write_manifest(folder, _manifest(attempt, step))
    write_marker(folder)
    return folder


def test_committed_lists_by_attempt_and_step_and_leaves_out_what_does_not_count(
    tmp_path: Path,
) -> None:
    assert committed_manifests(tmp_path, "job") == []
    for attempt, step in [(10, 5), (2, 10)]:
        _commit(tmp_path, attempt, step)
    (_commit(tmp_path, 3, 1) / COMMITTED).unlink()
    (_commit(tmp_path, 3, 2) / COMMITTED).write_text("")
    shutil.copytree(_commit(tmp_path, 2, 9), tmp_path / "job" / "a4" / "step-9")
    found = [(m.attempt, m.train_state.step) for m in committed_manifests(tmp_path, "job")]
    assert found == [(2, 9), (2, 10), (10, 5)]


def test_a_manifest_without_metadata_has_no_metadata_digest() -> None:
    with pytest.raises(CheckpointError, match=r"job\.a1\.step-2 names no index\.json"):
        metadata_digest(_manifest(1, 2))


def test_a_folder_is_created_for_one_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "job" / "a1" / "step-2"
    mkdir = Path.mkdir

    def somebody_else_first(path: Path, *args: Any, **options: Any) -> None:
        if path == folder:
            mkdir(path)
        mkdir(path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", somebody_else_first)
    with pytest.raises(CheckpointError, match=r"cannot create .*step-2: File exists"):
        create_folder(folder)


def test_a_marker_is_durable_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        seen.append("folder synced" if is_folder else "file synced")
        fsync(descriptor)

    def renamed(draft: Path, path: Path) -> Path:
        seen.append("renamed")
        return replace(draft, path)

    folder = _commit(tmp_path, 1, 1)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    with at_points(lambda point, _path: seen.append(point.value)):
        write_marker(folder)
    assert seen == ["file synced", Point.REPLACING, "renamed", Point.NAMED, "folder synced"]


def _refuse_folders(error: int) -> object:
    fsync = os.fsync

    def patched(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(error, os.strerror(error))
        fsync(descriptor)

    return patched


def test_a_storage_that_cannot_sync_folders_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", _refuse_folders(errno.EINVAL))
    assert read_manifest(_commit(tmp_path, 1, 1)).attempt == 1
    monkeypatch.setattr(os, "fsync", _refuse_folders(errno.EIO))
    with pytest.raises(CheckpointError, match="Input/output error"):
        _commit(tmp_path, 1, 2)

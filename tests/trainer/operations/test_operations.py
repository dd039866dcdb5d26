"""Verify and delete real checkpoints: every fault by its name, and nothing outside the root."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from tests.trainer.checkpoint.toy import JOB, resume_point, save_trained
from tests.trainer.commits import make_older
from tests.trainer.ranks import run_ranks
from trainer.checkpoint import manifest as manifests
from trainer.checkpoint.manifest import committed_manifests
from trainer.checkpoint.reader.metadata import read_metadata
from trainer.errors import LaunchError
from trainer.operations import delete
from trainer.operations.__main__ import _command, main
from trainer.operations.operation_folder import ProgressWriter
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.manifest import DCP_METADATA, INDEX, Manifest
from trainyard.protocol.operations import (
    OUTCOME,
    PROGRESS,
    TASK,
    OperationKind,
    OperationOrder,
    OperationOutcome,
    OperationProgress,
    OperationTask,
)
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.checkpoints.checkpoint_names import COMMITTED, FENCE, MANIFEST
from trainyard.spec.layout import Layout

Damage = Callable[[Path], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A separate storage root."""
    path = tmp_path / "root"
    path.mkdir()
    (path / ".trainyard-root").write_text("one\n")
    return path


def saved(root: Path, ranks: int) -> Manifest:
    """Save a checkpoint on a number of ranks."""
    manifest: Manifest = run_ranks(ranks, save_trained, root, Layout(dp_shard=ranks), 2)[0][0]
    return manifest


def do(
    root: Path,
    kind: OperationKind,
    *paths: str,
    point: ResumePoint | None = None,
    whole_job: bool = False,
    root_id: str | None = "one",
    job: str = JOB,
) -> OperationOutcome:
    """Run an operation in this process, and return its outcome."""
    folder = root.parent / "operation"
    folder.mkdir(exist_ok=True)
    task = OperationTask(
        kind=kind, job_id=job, root="r", paths=paths, checkpoint=point, whole_job=whole_job
    )
    order = OperationOrder(task=task, root_path=str(root), root_id=root_id)
    (folder / TASK).write_text(order.model_dump_json())
    code = main(folder)
    outcome = OperationOutcome.model_validate_json((folder / OUTCOME).read_bytes())
    assert code == (0 if outcome.outcome == "succeeded" else 1)
    return outcome


def look(
    root: Path, manifest: Manifest, kind: OperationKind = OperationKind.VERIFY
) -> OperationOutcome:
    point = resume_point(manifest)
    return do(root, kind, point.path, point=point)


@pytest.mark.parametrize(("ranks", "loaded_on"), [(1, 2), (3, 1)])
def test_a_whole_one_is_loaded_on_another_number_of_ranks(
    root: Path, ranks: int, loaded_on: int
) -> None:
    manifest = saved(root, ranks)
    outcome = look(root, manifest)
    found = outcome.verification
    assert found is not None
    assert (found.ok, found.loaded_on, found.tensors) == (True, loaded_on, 24)
    assert "all 24 tensors load on" in outcome.message
    progress = OperationProgress.model_validate_json(
        (root.parent / "operation" / PROGRESS).read_bytes()
    )
    assert progress.total == 2 * manifest.size


def test_a_scrub_reads_and_loads_nothing(root: Path) -> None:
    found = look(root, saved(root, 1), OperationKind.SCRUB).verification
    assert found is not None
    assert (found.ok, found.loaded_at, found.tensors) == (True, None, None)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def data_file(folder: Path) -> Path:
    return min(folder.glob("*.distcp"))


DAMAGES: dict[str, tuple[CheckpointFault, Damage]] = {
    "no marker": (CheckpointFault.NOT_COMMITTED, lambda f: (f / COMMITTED).unlink()),
    "another manifest": (CheckpointFault.MANIFEST_DAMAGED, lambda f: flip(f / MANIFEST)),
    "a missing file": (CheckpointFault.FILE_MISSING, lambda f: data_file(f).unlink()),
    "a short file": (
        CheckpointFault.FILE_SIZE,
        lambda f: os.truncate(data_file(f), data_file(f).stat().st_size - 1),
    ),
    "a flipped bit": (CheckpointFault.FILE_DAMAGED, lambda f: flip(data_file(f))),
    "another's index": (CheckpointFault.FILE_DAMAGED, lambda f: flip(f / INDEX)),
    "DCP's metadata": (CheckpointFault.FILE_DAMAGED, lambda f: flip(f / DCP_METADATA)),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_wrong_is_said_by_name(root: Path, name: str) -> None:
    fault, damage = DAMAGES[name]
    manifest = saved(root, 1)
    damage(root / resume_point(manifest).path)
    for kind in (OperationKind.VERIFY, OperationKind.SCRUB):
        found = look(root, manifest, kind).verification
        assert found is not None
        assert (found.ok, found.fault) == (False, fault)
        assert found.message is not None
        assert str(root) in found.message


def test_sectors_that_cannot_be_read_are_damage(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = saved(root, 1)

    def refuse(path: Path, *, algorithm: str) -> str:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(manifests, "file_digest", refuse)
    found = look(root, manifest, OperationKind.SCRUB).verification
    assert found is not None
    assert (found.ok, found.fault) == (False, CheckpointFault.FILE_DAMAGED)


@pytest.mark.parametrize("ranks", [1, 3])
def test_storage_that_refuses_while_it_loads_says_nothing_of_the_checkpoint(
    root: Path, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, begin = saved(root, ranks), ProgressWriter.begin
    file = data_file(root / resume_point(manifest).path)

    def begin_and_refuse(progress: ProgressWriter, doing: str) -> None:
        begin(progress, doing)
        if doing.startswith("loads"):
            file.unlink()
            file.symlink_to(file)  # ELOOP, for root too

    monkeypatch.setattr(ProgressWriter, "begin", begin_and_refuse)
    outcome = look(root, manifest)
    assert (outcome.outcome, outcome.verification) == ("failed", None)
    assert ("Too many levels" if ranks == 3 else "before it had loaded") in outcome.message


def test_another_checkpoint_in_its_place_is_named(root: Path) -> None:
    point = resume_point(saved(root, 1)).model_copy(update={"metadata_digest": "0" * 32})
    found = do(root, OperationKind.VERIFY, point.path, point=point).verification
    assert found is not None
    assert found.fault == CheckpointFault.ANOTHER_CHECKPOINT


def recommitted(folder: Path, change: Callable[..., object]) -> ResumePoint:
    """Change the only index and commit it again: correct checksums, but a bad checkpoint."""
    import pickle

    path = folder / DCP_METADATA
    metadata = read_metadata(path.read_bytes(), path)
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))
    return resume_point(make_older(folder))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            lambda m: m.state_dict_metadata["model.norm.weight"].chunks.clear(),
            CheckpointFault.TENSOR_INCOMPLETE,
        ),
        (
            lambda m: m.state_dict_metadata.update({"model.x": BytesStorageMetadata()}),
            CheckpointFault.METADATA_REFUSED,
        ),
        (
            lambda m: m.storage_data.clear(),
            CheckpointFault.TENSOR_INCOMPLETE,
        ),
    ],
)
def test_metadata_with_right_checksums_may_still_be_bad(
    root: Path, change: Callable[..., object], fault: CheckpointFault
) -> None:
    folder = root / resume_point(saved(root, 1)).path
    point = recommitted(folder, change)
    found = do(root, OperationKind.VERIFY, point.path, point=point).verification
    assert found is not None
    assert found.fault == fault


def test_a_deletion_takes_the_checkpoint_alone_and_may_be_repeated(root: Path) -> None:
    path = resume_point(saved(root, 1)).path
    outcome = do(root, OperationKind.DELETE, path)
    assert outcome.outcome == "succeeded"
    assert outcome.files >= 4
    assert not (root / path).exists()
    assert (root / JOB / FENCE).exists()
    again = do(root, OperationKind.DELETE, path)
    assert (again.outcome, again.files) == ("succeeded", 0)


def test_a_whole_job_leaves_nothing_of_itself(root: Path) -> None:
    path = resume_point(saved(root, 1)).path
    (root / JOB / "a1" / "step-7").mkdir()  # half-written
    (root / "other").mkdir()
    do(root, OperationKind.DELETE, path, whole_job=True)
    assert sorted(p.name for p in root.iterdir()) == [".trainyard-root", "other"]


def test_the_marker_goes_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion killed right after its first action leaves no checkpoint."""
    folder = root / resume_point(saved(root, 1)).path

    def ended(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(delete, "_remove", ended)
    with pytest.raises(KeyboardInterrupt):
        delete.delete_checkpoint(folder)
    assert not (folder / COMMITTED).exists()
    assert (folder / MANIFEST).exists()
    assert committed_manifests(root, JOB) == []
    monkeypatch.undo()
    delete.delete_checkpoint(folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    "path",
    [
        "../outside",
        "toy/a1/../a1/step-2",
        "other/a1/step-2",
        "toy",
        "/etc",
        "toy/a1/step-2/x",
        "toy/a1/step-02",
    ],
)
def test_no_path_leads_elsewhere(root: Path, path: str) -> None:
    outcome = do(root, OperationKind.DELETE, path, whole_job=True)
    assert outcome.outcome == "failed"
    assert "is no folder of a checkpoint of toy" in outcome.message


def test_a_link_is_not_followed(root: Path) -> None:
    outside = root.parent / "outside"
    (outside / "step-2").mkdir(parents=True)
    (root / JOB).mkdir()
    (root / JOB / "a1").symlink_to(outside)
    assert do(root, OperationKind.DELETE, "toy/a1/step-2").outcome == "failed"
    assert (outside / "step-2").exists()


def test_storage_that_is_not_the_one_meant_is_left_alone(root: Path) -> None:
    path = resume_point(saved(root, 1)).path
    outcome = do(root, OperationKind.DELETE, path, root_id="two")
    assert outcome.outcome == "failed"
    assert outcome.message.endswith("is storage one, not two")
    (root / ".trainyard-root").unlink()  # as if not mounted
    assert do(root, OperationKind.DELETE, path).outcome == "failed"
    assert (root / path / COMMITTED).exists()


@pytest.mark.parametrize("kind", [kind for kind in OperationKind if kind != OperationKind.BUILD])
def test_each_kind_has_a_function(kind: OperationKind) -> None:
    assert callable(_command(kind))


def test_a_build_is_no_command_of_the_trainer() -> None:
    with pytest.raises(LaunchError, match=r"python -m worker\.environments"):
        _command(OperationKind.BUILD)


def test_a_kind_that_this_trainer_lacks_is_refused(tmp_path: Path) -> None:
    task = {"kind": "compact", "job_id": JOB, "root": "r", "paths": []}
    (tmp_path / TASK).write_text(json.dumps({"task": task, "root_path": str(tmp_path)}))
    assert main(tmp_path) == 1
    outcome = OperationOutcome.model_validate_json((tmp_path / OUTCOME).read_bytes())
    assert str(tmp_path / TASK) in outcome.message
    assert "task.kind" in outcome.message
    assert "'verify', 'scrub', 'delete'" in outcome.message


def test_a_deletion_needs_no_torch(root: Path) -> None:
    folder = root.parent / "operation"
    folder.mkdir()
    task = OperationTask(kind=OperationKind.DELETE, job_id=JOB, root="r", paths=("toy/a1/step-2",))
    order = OperationOrder(task=task, root_path=str(root), root_id="one")
    (folder / TASK).write_text(order.model_dump_json())
    code = (
        "import pathlib, sys; from trainer.operations.__main__ import main; "
        f"assert main(pathlib.Path({str(folder)!r})) == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

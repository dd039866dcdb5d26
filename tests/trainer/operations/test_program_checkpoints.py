"""Operations on checkpoints of programs: files are compared, and nothing is loaded or followed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.operations import test_recover
from tests.trainer.operations.test_operations import do
from trainer.checkpoint.fence import read_fence
from trainer.checkpoint.manifest import read_manifest
from trainer.errors import CheckpointError
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.operations import OperationKind, OperationOutcome, Verification
from trainyard.protocol.record_parser import parse_record
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.checkpoints.program_manifest import ProgramManifest
from trainyard.run.checkpoints.program_save import ProgramCheckpoints
from trainyard.run.checkpoints.program_storage import JobStorage

JOB = test_recover.JOB
Damage = Callable[[Path], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A separate storage root."""
    path = tmp_path / "root"
    path.mkdir()
    (path / ".trainyard-root").write_text("one\n")
    return path


def saved(root: Path, step: int = 4, *, job: str = JOB, attempt: int = 1) -> ProgramManifest:
    """Commit a checkpoint of a program of one process."""
    made: list[ProgramManifest] = []
    program = ProgramCheckpoints(JobStorage(root, job, attempt), 0, 1, made.append)
    with program.save(step) as folder:
        (folder / "model.pt").write_bytes(b"weights" * 100)
        (folder / "shards").mkdir()
        (folder / "shards" / "0.safetensors").write_bytes(b"more")
    return made[0]


def look(
    root: Path, manifest: ProgramManifest, kind: OperationKind = OperationKind.VERIFY
) -> tuple[OperationOutcome, Verification]:
    point = ResumePoint(
        checkpoint_id=manifest.checkpoint_id,
        path=f"{manifest.job_id}/a{manifest.attempt}/step-{manifest.step}",
        step=manifest.step,
        metadata_digest=manifest.metadata_digest,
    )
    outcome = do(root, kind, point.path, point=point, job=manifest.job_id)
    assert outcome.verification is not None
    return outcome, outcome.verification


def test_a_verification_compares_files_and_loads_nothing(root: Path) -> None:
    manifest = saved(root)
    outcome, found = look(root, manifest)
    assert (found.ok, found.loaded_at, found.tensors) == (True, None, None)
    assert outcome.message == (
        "every checksum is right; nothing was loaded: only the program knows what its files hold"
    )
    outcome, found = look(root, manifest, OperationKind.SCRUB)
    assert (found.ok, outcome.message) == (True, "every checksum is right")


def _flip(folder: Path) -> None:
    (folder / "model.pt").write_bytes(b"WEIGHTS" * 100)


def _pipe(folder: Path) -> None:
    (folder / "model.pt").unlink()
    os.mkfifo(folder / "model.pt")


def _link(folder: Path) -> None:
    (folder / "model.pt").unlink()
    (folder / "model.pt").symlink_to("/etc/passwd")


def _linked_folder(folder: Path) -> None:
    (folder / "shards" / "0.safetensors").unlink()
    (folder / "shards").rmdir()
    (folder / "shards").symlink_to("/etc")


def _rewrite(folder: Path, **changes: Any) -> None:
    """Replace fields of the manifest, and the marker with them."""
    text = json.dumps(json.loads((folder / "manifest.json").read_text()) | changes)
    (folder / "manifest.json").write_text(text)
    marker = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    (folder / "COMMITTED").write_text(marker)


def _outside(folder: Path) -> None:
    file = {"path": "../../../.trainyard-root", "size": 4, "checksum": "0" * 64}
    _rewrite(folder, files=[file], size=4)


def _manifest_pipe(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    os.mkfifo(folder / "manifest.json")


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (_flip, CheckpointFault.FILE_DAMAGED),
        (lambda f: (f / "model.pt").write_bytes(b"w"), CheckpointFault.FILE_SIZE),
        (lambda f: (f / "model.pt").unlink(), CheckpointFault.FILE_MISSING),
        (lambda f: (f / "COMMITTED").unlink(), CheckpointFault.NOT_COMMITTED),
        (lambda f: (f / "manifest.json").write_bytes(b"{}"), CheckpointFault.MANIFEST_DAMAGED),
        (lambda f: _rewrite(f, attempt=2), CheckpointFault.MANIFEST_DAMAGED),
        (
            lambda f: _rewrite(f, attempt=2, checkpoint_id=f"{JOB}.a2.step-4"),
            CheckpointFault.ANOTHER_CHECKPOINT,
        ),
        (lambda f: _rewrite(f, files=[], size=0), CheckpointFault.ANOTHER_CHECKPOINT),
        (_outside, CheckpointFault.MANIFEST_DAMAGED),
        (_link, CheckpointFault.LINKED_OUTSIDE),
        (_linked_folder, CheckpointFault.LINKED_OUTSIDE),
        (_pipe, CheckpointFault.FILE_SIZE),
        (_manifest_pipe, CheckpointFault.FILE_MISSING),
    ],
)
def test_every_fault_has_its_name(root: Path, damage: Damage, fault: CheckpointFault) -> None:
    manifest = saved(root)
    damage(root / JOB / "a1" / "step-4")
    _, found = look(root, manifest)
    assert (found.ok, found.fault) == (False, fault)


def test_a_deletion_removes_folders_below_and_follows_no_link(root: Path, tmp_path: Path) -> None:
    manifest = saved(root)
    folder = root / JOB / "a1" / "step-4"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (folder / "planted").symlink_to(outside)
    outcome = do(root, OperationKind.DELETE, f"{JOB}/a1/step-4", job=manifest.job_id)
    assert outcome.outcome == "succeeded"
    assert not folder.exists()
    assert (outside / "kept").read_text() == "kept"


def test_a_recovery_finds_commits_and_leaves_out_what_is_not_whole(root: Path) -> None:
    for step in (4, 8, 12):
        saved(root, step)
    saved(root, 16, attempt=2)
    _flip(root / JOB / "a1" / "step-8")
    (root / JOB / "a1" / "step-12" / "model.pt").unlink()
    planted = root / JOB / "a1" / "step-99"
    planted.mkdir()
    for name in ("manifest.json", "COMMITTED"):  # of another step
        (planted / name).write_bytes((root / JOB / "a1" / "step-4" / name).read_bytes())
    outcome = test_recover.do(root)
    found = [parse_record(ProgramManifest, text) for text in outcome.commits]
    # A flipped byte of the same size is found by a scrub: a recovery reads no contents.
    assert [manifest.step for manifest in found] == [8, 4]
    assert read_fence(root / JOB) == 2


def test_what_loads_tensors_refuses_it(root: Path) -> None:
    saved(root)
    with pytest.raises(CheckpointError, match="only the program knows what its files hold"):
        read_manifest(root / JOB / "a1" / "step-4")

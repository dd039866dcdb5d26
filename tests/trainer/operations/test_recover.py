"""The search for commits of a lost attempt: the fence first, and only whole checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.manifests import make_manifest, state_at
from tests.trainer.commits import write_manifest, write_marker
from trainer.checkpoint.fence import raised_fence, read_fence
from trainer.operations import recover
from trainer.operations.__main__ import main
from trainer.storage.io_errors import digest
from trainyard.protocol.manifest import DCP_METADATA, Manifest, ManifestFile
from trainyard.protocol.operations import (
    OUTCOME,
    TASK,
    OperationKind,
    OperationOrder,
    OperationOutcome,
    OperationTask,
    RecoverTask,
)
from trainyard.run.checkpoints.checkpoint_names import COMMITTED, FENCE, MANIFEST, checkpoint_path

JOB = "job-1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    (path / ".trainyard-root").write_text("one\n")
    return path


def commit(
    root: Path, attempt: int, step: int, *, position: int | None = None, **fields: Any
) -> Path:
    """Commit a folder that holds metadata alone."""
    folder = root / checkpoint_path(JOB, attempt, step)
    folder.mkdir(parents=True)
    content = f"metadata of {step}".encode()
    (folder / DCP_METADATA).write_bytes(content)
    state = state_at(step)
    if position is not None:
        data = state.data.model_copy(update={"position": position})
        state = state.model_copy(update={"data": data})
    file = ManifestFile(path=DCP_METADATA, size=len(content), xxh3_128=digest(content))
    manifest = make_manifest(JOB, attempt, state, files=(file,), **fields)
    write_manifest(folder, manifest)
    write_marker(folder)
    return folder


def do(root: Path, *, attempt: int = 1, after_step: int = -1, job: str = JOB) -> OperationOutcome:
    folder = root.parent / "operation"
    folder.mkdir(exist_ok=True)
    task = OperationTask(
        kind=OperationKind.RECOVER,
        job_id=job,
        root="r",
        paths=(),
        recover=RecoverTask(attempt=attempt, fence=attempt + 1, after_step=after_step),
    )
    order = OperationOrder(task=task, root_path=str(root), root_id="one")
    (folder / TASK).write_text(order.model_dump_json())
    main(folder)
    return OperationOutcome.model_validate_json((folder / OUTCOME).read_bytes())


def steps(outcome: OperationOutcome) -> list[int]:
    return [Manifest.model_validate_json(text).train_state.step for text in outcome.commits]


def test_what_came_after_the_newest_known_is_found_newest_first(root: Path) -> None:
    for step in (0, 8, 20, 100):
        commit(root, 1, step)
    commit(root, 2, 200)
    outcome = do(root, after_step=0)
    assert (outcome.outcome, steps(outcome)) == ("succeeded", [100, 20, 8])
    assert outcome.message.startswith("3 found of attempt 1 after step 0, 0 damaged")
    assert outcome.commits[0] == (root / checkpoint_path(JOB, 1, 100) / MANIFEST).read_text()
    assert steps(do(root)) == [100, 20, 8, 0]
    assert steps(do(root, after_step=100)) == []


def test_the_attempt_is_fenced_off_even_if_nothing_is_there(root: Path) -> None:
    assert steps(do(root, attempt=3)) == []
    assert read_fence(root / JOB) == 4
    assert (root / JOB / FENCE).exists()


def test_a_fence_that_is_higher_already_stays(root: Path) -> None:
    commit(root, 1, 8)
    with raised_fence(root / JOB, 7):
        pass
    assert steps(do(root)) == [8]
    assert read_fence(root / JOB) == 7


def test_what_is_not_whole_is_left_out(root: Path) -> None:
    commit(root, 1, 1)
    (commit(root, 1, 2) / COMMITTED).unlink()
    (commit(root, 1, 3) / MANIFEST).write_text("{}")
    (commit(root, 1, 4) / DCP_METADATA).write_bytes(b"metadata of 5")
    (commit(root, 1, 6) / DCP_METADATA).write_bytes(b"short")
    (commit(root, 1, 7) / DCP_METADATA).unlink()
    commit(root, 1, 8, position=9)
    outside = (commit(root, 1, 9) / DCP_METADATA).rename(root.parent / "outside")
    (root / checkpoint_path(JOB, 1, 9) / DCP_METADATA).symlink_to(outside)
    outcome = do(root)
    assert steps(outcome) == [1]
    assert ", 5 damaged, " in outcome.message


def test_what_has_no_room_in_the_report_is_counted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        commit(root, 1, step)
    size = len((root / checkpoint_path(JOB, 1, 3) / MANIFEST).read_text())
    monkeypatch.setattr(recover, "MAX_RECOVERED_BYTES", 2 * size)
    outcome = do(root)
    assert steps(outcome) == [3, 2]
    assert outcome.message.endswith("1 without room in the report")


def test_the_room_in_the_report_is_counted_in_bytes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        commit(root, 1, step, torch_version="ö" * 500)
    text = (root / checkpoint_path(JOB, 1, 2) / MANIFEST).read_text()
    monkeypatch.setattr(recover, "MAX_RECOVERED_BYTES", 2 * len(text))
    assert steps(do(root)) == [2]
    monkeypatch.setattr(recover, "MAX_RECOVERED_BYTES", 2 * len(text.encode()))
    assert steps(do(root)) == [2, 1]


@pytest.mark.parametrize("job", ["../other", ".", ""])
def test_a_job_that_leads_elsewhere_is_refused(root: Path, job: str) -> None:
    outcome = do(root, job=job)
    assert (outcome.outcome, outcome.message) == ("failed", "the task names no attempt to recover")
    assert list(root.iterdir()) == [root / ".trainyard-root"]


def test_other_storage_is_refused(root: Path) -> None:
    (root / ".trainyard-root").write_text("two\n")
    assert do(root).outcome == "failed"
    assert not (root / JOB).exists()

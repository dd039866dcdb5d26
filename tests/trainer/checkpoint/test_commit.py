"""The rules of a checkpoint: created once, committed last, and only by the newest attempt."""

from pathlib import Path

from tests.trainer.checkpoint.toy import (
    JOB,
    Refusal,
    build,
    manager,
    refusal,
    save_trained,
    state_at,
)
from tests.trainer.points import at_points
from tests.trainer.ranks import run_ranks
from trainer.checkpoint.fence import raised_fence
from trainer.checkpoint.manifest import check_contents, committed_manifests, read_manifest
from trainer.checkpoint.save_folder import Point
from trainer.errors import RunError
from trainyard.protocol.manifest import Manifest
from trainyard.run.checkpoints.checkpoint_names import COMMITTED, FENCE, MANIFEST
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.training import TrainingSection

LAYOUT = Layout(dp_shard=2)


def _times(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}


def test_a_save_leaves_exactly_what_its_manifest_names(tmp_path: Path) -> None:
    manifests = [manifest for manifest, _ in run_ranks(2, save_trained, tmp_path, LAYOUT, 2)]
    folder = tmp_path / JOB / "a1" / "step-2"
    manifest = read_manifest(folder)
    assert manifests == [manifest, manifest]
    names = {file.path for file in manifest.files}
    assert names == {".metadata", "index.json", "__0_0.distcp", "__1_0.distcp"}
    assert {file.name for file in folder.iterdir()} == names | {MANIFEST, COMMITTED}
    check_contents(folder, manifest.files)  # checksums of write and read are equal
    assert (tmp_path / JOB / FENCE).read_text() == "1\n"
    assert str(tmp_path).encode() not in (folder / ".metadata").read_bytes()


def test_a_committed_step_is_not_written_again(tmp_path: Path) -> None:
    first, _ = run_ranks(2, save_trained, tmp_path, LAYOUT, 2)[0]
    folder = tmp_path / JOB / "a1" / "step-2"
    before = _times(folder)
    again = [manifest for manifest, _ in run_ranks(2, save_trained, tmp_path, LAYOUT, 2)]
    assert again == [first, first]
    assert _times(folder) == before


def test_a_leftover_without_marker_is_replaced_and_never_counts(tmp_path: Path) -> None:
    folder = tmp_path / JOB / "a1" / "step-2"
    folder.mkdir(parents=True)
    (folder / "__7_0.distcp").write_bytes(b"of a larger world")
    (folder / MANIFEST).write_text("{}")
    assert committed_manifests(tmp_path, JOB) == []
    manifest, _ = run_ranks(2, save_trained, tmp_path, LAYOUT, 2)[0]
    assert committed_manifests(tmp_path, JOB) == [manifest]
    assert not (folder / "__7_0.distcp").exists()


def _save(root: Path, attempt: int, spec: JobSpec | None = None) -> Refusal | Manifest:
    model, optimizer = build(LAYOUT, seed=1)
    saver = manager(root, LAYOUT, attempt=attempt, spec=spec)
    try:
        return saver.save(model, optimizer, state_at(2), kind="interval")
    except RunError as error:
        return refusal(error)


def test_a_checkpoint_of_another_run_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    run_ranks(2, save_trained, tmp_path, LAYOUT, 2)
    other = JobSpec(training=TrainingSection(seed=5))
    for kind, text, path, _ in run_ranks(2, _save, tmp_path, 1, other):
        assert kind == "CheckpointError"
        assert "another run" in text
        assert path == str(tmp_path / JOB / "a1" / "step-2")


def test_the_same_step_of_two_attempts_lies_side_by_side(tmp_path: Path) -> None:
    run_ranks(2, _save, tmp_path, 1)
    run_ranks(2, _save, tmp_path, 2)
    assert [m.checkpoint_id for m in committed_manifests(tmp_path, JOB)] == [
        "toy.a1.step-2",
        "toy.a2.step-2",
    ]


def test_an_outrun_attempt_commits_nothing(tmp_path: Path) -> None:
    with raised_fence(tmp_path / JOB, 2):
        pass
    for kind, text, path, _ in run_ranks(2, _save, tmp_path, 1):
        assert kind == "OutrunError"
        assert "attempt 1 was outrun" in text
        assert path == str(tmp_path / JOB / FENCE)
    assert not (tmp_path / JOB / "a1").exists()


def _save_while_outrun(root: Path, attempt: int) -> Refusal | Manifest:
    def be_outrun(point: Point, path: Path) -> None:
        if (point, path.name) == (Point.NAMED, MANIFEST):
            with raised_fence(root / JOB, attempt + 1):
                pass

    with at_points(be_outrun):
        return _save(root, attempt)


def test_an_attempt_that_is_outrun_during_its_save_does_not_commit(tmp_path: Path) -> None:
    for kind, *_ in run_ranks(2, _save_while_outrun, tmp_path, 1):
        assert kind == "OutrunError"
    assert committed_manifests(tmp_path, JOB) == []
    assert not (tmp_path / JOB / "a1" / "step-2").exists()  # its space is free again

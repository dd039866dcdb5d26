"""The checkpoints that an attempt may continue from: equal settings and code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.models.own.test_own_model import gpt
from tests.trainer.ranks import RankError
from tests.trainer.runs import Attempt, SmallJob
from trainer.checkpoint.manifest import read_manifest
from trainer.errors import DataError, MismatchError
from trainer.loop.resume import OF_OLDER_VERSIONS, check_takeover
from trainer.run import TrainerRun, open_run
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.resume_parts import CheckpointPart
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.failures import LoadFailure
from trainyard.spec.layout import Layout
from trainyard.spec.sections.checkpoint import CheckpointSection

ONE = Layout()
CODE = "c" * 32


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The checkpoint of step 5 of the small job, saved with another interval than submitted."""
    job = SmallJob(tmp_path_factory.mktemp("saved"))
    job = job.changed(job.folder, training={"steps": 5})
    job = SmallJob(job.folder, {**job.spec, "env": {"OMP_NUM_THREADS": "1"}})
    job.launch(1, ONE, overrides=Overrides(checkpoint=CheckpointSection(interval_steps=1)))
    return read_manifest(job.storage / "job-1/a1/step-5")


def resuming(
    folder: Path, manifest: Manifest, overrides: Overrides | None = None, **sections: Any
) -> TrainerRun:
    """Return an attempt of a job with changed sections that resumes from a checkpoint."""
    job = SmallJob(folder).changed(folder, training={"steps": 5})
    merged = {name: {**job.spec.get(name, {}), **given} for name, given in sections.items()}
    run = SmallJob(folder, {**job.spec, **merged}).prepare(
        2, ONE, resume=manifest, overrides=overrides
    )
    return open_run(run, world_size=1, roots={})


def compare(
    manifest: Manifest, run: TrainerRun, *, code: str | None = None, **point: Any
) -> dict[str, Any]:
    resume = run.attempt.resume
    assert resume is not None
    attempt = run.attempt.model_copy(update={"resume": resume.model_copy(update=point)})
    moved = TrainerRun(**{**vars(run), "attempt": attempt})
    digest = manifest.train_state.data.dataset_digest
    return check_takeover(
        manifest, moved, dataset_digest=digest, same_order={digest}, code_digest=code
    )


def test_the_manifest_holds_the_spec_that_held_without_env(saved: Manifest) -> None:
    assert saved.spec is not None
    assert saved.spec.env == {}
    assert saved.spec.checkpoint.interval_steps == 1
    assert saved.spec.optimizer.lr == 1e-3
    assert saved.code_digest is None


@pytest.mark.parametrize(
    ("section", "field", "value", "words"),
    [
        ("optimizer", "lr", 2e-3, "optimizer.lr: 0.001 -> 0.002"),
        ("optimizer", "beta2", 0.98, "optimizer.beta2: 0.95 -> 0.98"),
        ("lr_schedule", "warmup_steps", 1, "lr_schedule.warmup_steps: 5 -> 1"),
        ("training", "global_batch_size", 8, "training.global_batch_size: 16 -> 8"),
        ("training", "max_grad_norm", 0.5, "training.max_grad_norm: 1.0 -> 0.5"),
        ("training", "seed", 7, "training.seed: 0 -> 7"),
        ("training", "seq_len", 64, "training.seq_len: 32 -> 64"),
        ("training", "steps", 9, "end of the schedule, in tokens: 2560 -> 4608"),
        ("model", "dropout", 0.2, "model.dropout: 0.1 -> 0.2"),
        ("model", "rope_theta", 5000.0, "model.rope_theta: 10000.0 -> 5000.0"),
        ("data", "document_masks", True, "data.document_masks: False -> True"),
    ],
)
def test_what_the_result_depends_on_is_refused_with_both_values(
    tmp_path: Path, saved: Manifest, section: str, field: str, value: object, words: str
) -> None:
    changes: dict[str, Any] = {section: {field: value}}
    run = resuming(tmp_path, saved, **changes)
    with pytest.raises(MismatchError, match="was written under other settings") as refused:
        compare(saved, run)
    assert words in str(refused.value)
    assert "A resume may change activation_checkpoint, checkpoint, compile" in str(refused.value)


def test_what_may_change_is_named(tmp_path: Path, saved: Manifest) -> None:
    overrides = Overrides(steps=9, micro_batch_size=2)
    sections = {"guard": {"spike_factor": 4.0}, "training": {"log_every_steps": 2}}
    found = compare(saved, resuming(tmp_path, saved, overrides, **sections))
    assert found["compared"] == ("spec",)
    assert sorted(found["changed"]) == [
        "checkpoint.interval_steps: 1 -> 0",
        "guard.spike_factor: 3.0 -> 4.0",
        "training.log_every_steps: 1 -> 2",
        "training.micro_batch_size: 4 -> 2",
        "training.steps: 5 -> 9",
    ]
    assert "code" not in found


def test_a_fork_compares_only_the_parts_that_it_takes(tmp_path: Path, saved: Manifest) -> None:
    other = saved.model_copy(update={"job_id": "another"})
    run = resuming(tmp_path, saved, optimizer={"lr": 2e-3}, model={"dropout": 0.0})
    changed = compare(other, run)["changed"]
    assert {"optimizer.lr: 0.001 -> 0.002", "model.dropout: 0.1 -> 0.0"} <= set(changed)

    seed = resuming(tmp_path / "seed", saved, training={"seed": 7})
    with pytest.raises(MismatchError, match=r"training\.seed: 0 -> 7.*leave data out"):
        compare(other, seed)
    without_data = (CheckpointPart.MODEL, CheckpointPart.OPTIMIZER, CheckpointPart.COUNTERS)
    assert "training.seed: 0 -> 7" in compare(other, seed, parts=without_data)["changed"]
    wide = resuming(tmp_path / "wide", saved, model={"ffn_dim": 64})
    with pytest.raises(MismatchError, match=r"ffn_dim.*a model of the same shape"):
        compare(other, wide)


def test_an_older_manifest_is_compared_by_what_it_holds(tmp_path: Path, saved: Manifest) -> None:
    old = saved.model_copy(update={"spec": None})
    same = compare(old, resuming(tmp_path / "same", saved))
    assert same["compared"] == OF_OLDER_VERSIONS
    assert same["changed"] == ()
    # No record names the field, or whether it matters.
    other = compare(old, resuming(tmp_path / "other", saved, optimizer={"lr": 2e-3}))
    assert [text.partition(":")[0] for text in other["changed"]] == ["spec_digest"]
    assert "not recorded" in other["changed"][0]
    for section, field, value in (
        ("model", "dropout", 0.2), ("training", "seed", 7), ("training", "seq_len", 64)
    ):  # fmt: skip
        changes: dict[str, Any] = {section: {field: value}}
        run = resuming(tmp_path / field, saved, **changes)
        with pytest.raises(MismatchError, match=rf"{section}\.{field}: "):
            compare(old, run)


def test_other_code_is_refused_unless_it_is_allowed(tmp_path: Path, saved: Manifest) -> None:
    own = saved.model_copy(update={"code_digest": CODE})
    run = resuming(tmp_path, saved)
    assert compare(own, run, code=CODE)["code"] == {"before": CODE, "now": CODE}
    with pytest.raises(MismatchError, match=rf"{CODE} -> dddd.*allow_code_change"):
        compare(own, run, code="d" * 32)
    with pytest.raises(MismatchError, match="allow_code_change"):
        compare(own, run, code=None)
    found = compare(own, run, code="d" * 32, allow_code_change=True)
    assert found["code"] == {"before": CODE, "now": "d" * 32}
    # A manifest of an older version has no digest of the code.
    assert "code" not in compare(saved, run, code=CODE)


def test_other_data_are_refused(tmp_path: Path, saved: Manifest) -> None:
    run, other = resuming(tmp_path, saved), "e" * 32
    with pytest.raises(DataError, match="was trained on data with digest"):
        check_takeover(saved, run, dataset_digest=other, same_order={other}, code_digest=None)


def test_a_run_is_refused_before_a_tensor_is_read(tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(tmp_path, training={"steps": 5})
    job.launch(1, ONE)
    saved = job.committed()["job-1.a1.step-5"]
    with pytest.raises(RankError):
        job.changed(tmp_path, optimizer={"lr": 2e-3}).launch(2, ONE, resume=saved)
    error = Attempt(tmp_path / "runs" / "2").error
    assert error.reason == "checkpoint_error"
    assert "optimizer.lr: 0.001 -> 0.002" in error.message
    assert error.load is None, "it is no fault of the checkpoint"
    attempt = job.launch(3, ONE, resume=saved, overrides=Overrides(steps=6))
    (resumed,) = (event for event in attempt.events if event.kind == "resumed")
    assert resumed.data["changed"] == ["training.steps: 5 -> 6"]
    assert resumed.data["compared"] == ["spec"]


def test_a_checkpoint_that_cannot_be_loaded_is_a_typed_fault(tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(tmp_path, training={"steps": 5})
    job.launch(1, ONE)
    (job.storage / ".trainyard-root").write_text("one")
    saved = job.committed()["job-1.a1.step-5"]
    data = job.storage / "job-1/a1/step-5/__0_0.distcp"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(RankError):
        job.launch(2, ONE, resume=saved, overrides=Overrides(steps=6))
    error = Attempt(tmp_path / "runs" / "2").error
    assert error.reason == "checkpoint_error"
    damaged = LoadFailure(checkpoint_id="job-1.a1.step-5", fault=CheckpointFault.FILE_DAMAGED)
    assert error.load == damaged


def test_a_run_with_other_code_is_refused(tmp_path: Path) -> None:
    job = gpt(tmp_path, steps=5)
    job.launch(1, ONE)
    saved = job.committed()["job-1.a1.step-5"]
    assert saved.code_digest is not None
    code = tmp_path / "data" / "own_model" / "gpt.py"
    code.write_text(code.read_text() + "\n# another line\n")
    with pytest.raises(RankError):
        job.launch(2, ONE, resume=saved, overrides=Overrides(steps=6))
    error = Attempt(tmp_path / "runs" / "2").error
    assert "was written by other code of model.code" in error.message

"""Before a load, one error lists all differences, with their remedies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainer.ranks import RankError
from tests.trainer.runs import Attempt, SmallJob
from trainer.checkpoint.manifest import read_manifest
from trainer.checkpoint.reader.metadata import SHOWN, remedy_of
from trainer.compare import compare_with, main
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SmallJob:
    """A job with two layers and a checkpoint of its first step, saved by two ranks."""
    folder = tmp_path_factory.mktemp("trained")
    job = SmallJob(folder).changed(folder, training={"steps": 1}, lr_schedule={"warmup_steps": 0})
    job.launch(1, Layout(dp_shard=2))
    return job


def _folder(job: SmallJob) -> Path:
    return job.storage / "job-1" / "a1" / "step-1"


def _spec(job: SmallJob, **sections: dict[str, object]) -> JobSpec:
    return parse_job_spec(json.dumps(job.changed(job.folder, **sections).spec))


def test_the_same_job_fits_without_reading_a_tensor(trained: SmallJob) -> None:
    found = compare_with(_spec(trained), _folder(trained))
    assert found.fits
    assert str(found) == f"{found.alike} tensors alike, 0 missing, 0 unexpected, 0 changed"
    assert found.alike == 4 * 21, "weights, two moments and a step counter of each of 21 parameters"


def test_what_is_missing_unexpected_or_changed_is_counted(trained: SmallJob) -> None:
    folder = _folder(trained)
    more = compare_with(_spec(trained, model={"n_layers": 3}), folder)
    fewer = compare_with(_spec(trained, model={"n_layers": 1}), folder)
    assert len(more.missing) == len(fewer.unexpected) == 4 * 9
    assert {name.split(".")[2] for name, _ in more.missing if name.startswith("model.")} == {"2"}
    assert not any((more.unexpected, more.changed, fewer.missing, fewer.changed))

    wider = compare_with(_spec(trained, model={"ffn_dim": 96}), folder)
    assert not any((wider.missing, wider.unexpected))
    # Three matrices of each layer, with two moments each; step counters have no shape.
    assert len(wider.changed) == 2 * 3 * 3
    assert f"and {2 * 3 * 3 - SHOWN} more" in str(wider)

    moments = compare_with(_spec(trained, optimizer={"state_dtype": "bfloat16"}), folder)
    assert {name.rsplit(".", 1)[1] for name, *_ in moments.changed} == {"exp_avg", "exp_avg_sq"}


def test_of_weights_of_another_type_the_type_is_to_be_changed(trained: SmallJob) -> None:
    training: dict[str, object] = {"weight_dtype": "bfloat16", "param_dtype": "bfloat16"}
    spec = _spec(trained, training=training, optimizer={"state_dtype": "bfloat16"})
    comparison = compare_with(spec, _folder(trained))
    assert not any((comparison.missing, comparison.unexpected))
    remedy = remedy_of(comparison, read_manifest(_folder(trained)))
    assert remedy.startswith("Set training.weight_dtype='float32', in which")


def test_the_command_says_it_by_its_exit_code(
    trained: SmallJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for sections, code, text in (
        ({}, 0, "0 missing, 0 unexpected, 0 changed"),
        ({"model": {"n_layers": 3}}, 1, "missing in the checkpoint:\n    model.layers.2."),
    ):
        spec = trained.changed(trained.folder, **sections).spec
        (run / "spec.json").write_text(json.dumps(spec))
        arguments = [str(run), str(_folder(trained)), "--root", f"data={trained.folder / 'data'}"]
        assert main(arguments) == code
        assert text in capsys.readouterr().out
    assert main([str(run), str(tmp_path / "nothing")]) == 2
    assert "no committed checkpoint" in capsys.readouterr().err


def test_all_stages_of_a_pipeline_are_compared_at_once(trained: SmallJob) -> None:
    manifest = read_manifest(_folder(trained))
    wider = trained.changed(trained.folder, model={"ffn_dim": 96})
    with pytest.raises(RankError):
        wider.launch(2, Layout(pp=2), resume=wider.older(manifest))
    error = Attempt(wider.folder / "runs" / "2").error
    assert error.reason == "checkpoint_error"
    changed = 2 * 3 * 3  # of both stages, not only of the first
    assert f"0 missing, 0 unexpected, {changed} changed" in error.message
    assert " there and float32 (96, 64) here\n    and 10 more" in error.message
    assert error.remedy.text.endswith("Give the job the model of the one that wrote it.")
    assert error.path is not None
    assert error.path.endswith("index.json")


def test_of_weights_that_fit_only_the_optimizer_is_to_be_changed(trained: SmallJob) -> None:
    manifest = read_manifest(_folder(trained))
    other = trained.changed(trained.folder, optimizer={"state_dtype": "bfloat16"})
    with pytest.raises(RankError):
        other.launch(3, Layout(), resume=other.older(manifest))
    error = Attempt(other.folder / "runs" / "3").error
    assert "The weights fit: set optimizer as it was" in error.remedy.text
    assert len(error.message) < 2000, "bounded, however many tensors differ"

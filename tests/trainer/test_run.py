"""Opening a run directory: defaults of a bare launch, refusals, and their messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer.errors import LaunchError
from trainer.run import TrainerRun, open_run, refuse_used
from trainyard.protocol.attempt import AttemptSpec, Overrides
from trainyard.protocol.record_parser import parse_record
from trainyard.run.directory import RunDirectory
from trainyard.run.records import Outcome
from trainyard.spec.auto import auto_values
from trainyard.spec.layout import Layout
from trainyard.spec.sections.checkpoint import CheckpointSection

ROOT = Path(__file__).resolve().parents[2]


def write(run: Path, spec: dict[str, Any], attempt: AttemptSpec | None = None) -> Path:
    run.mkdir(parents=True, exist_ok=True)
    (run / "spec.json").write_text(json.dumps(spec))
    if attempt is not None:
        (run / "attempt.json").write_text(attempt.model_dump_json())
    return run


def opened(run: Path, world_size: int | None = 2, **roots: str) -> TrainerRun:
    return open_run(run, world_size=world_size, roots=roots)


def test_a_bare_launch_needs_a_spec_alone(tmp_path: Path) -> None:
    run = opened(write(tmp_path, {"name": "tiny"}), world_size=3)
    assert run.attempt == AttemptSpec(job_id="tiny", layout=Layout(dp_shard=3))
    assert run.checkpoint_root == tmp_path / "checkpoints"
    assert run.cache_dir == tmp_path / "cache"
    assert (run.partition.dp, run.partition.micro_batches) == (3, 4)


def test_a_bare_launch_is_a_new_job_and_says_nothing_in_vain(tmp_path: Path) -> None:
    idle = {"lr_schedule": {"name": "cosine", "decay_steps": 20}}
    with pytest.raises(LaunchError, match="decay_steps=20 does nothing with name='cosine'"):
        opened(write(tmp_path / "bare", idle))
    stored = AttemptSpec(
        job_id="job-1", layout=Layout(dp_shard=2), roots={"checkpoints": "/here"}, cache_dir="/c"
    )
    assert opened(write(tmp_path / "stored", idle, stored)).attempt == stored


def test_weights_are_not_exported_into_a_bucket(tmp_path: Path) -> None:
    bucket = "s3://kept/runs"
    spec = {"checkpoint": {"export": "safetensors"}}
    message = r"export='safetensors'.*'checkpoints' is s3://kept/runs, a bucket.*legal: dcp, none"
    with pytest.raises(LaunchError, match=message):
        opened(write(tmp_path / "run", spec), checkpoints=bucket)
    spec["checkpoint"]["export"] = "dcp"
    assert str(opened(write(tmp_path / "run", spec), checkpoints=bucket).checkpoint_root) == bucket
    spec["checkpoint"]["export"] = "safetensors"
    opened(write(tmp_path / "run", spec), checkpoints=str(tmp_path))


def test_auto_goes_by_the_device_and_the_layout_of_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare launch uses its own device: without GPUs the CPU."""
    spec = {"activation_checkpoint": {"mode": "full"}, "checkpoint": {"interval_steps": 20}}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    bare = opened(write(tmp_path / "bare", spec))
    assert bare.submitted.compile.enabled == "auto"
    assert auto_values(bare.submitted, "cpu") == _values(bare)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for layout, compiled in ((Layout(dp_shard=2), True), (Layout(tp=2), False)):
        placed = AttemptSpec(job_id="j", layout=layout, device="cuda", roots={"checkpoints": "/c"})
        values = _values(opened(write(tmp_path / str(layout), spec, placed)))
        assert values == {
            "training.log_every_steps": 10,
            "compile.enabled": compiled,
            "checkpoint.interval_seconds": 0.0,
            "checkpoint.async_mode": "async_with_pinned_mem",
        }
    assert _values(opened(write(tmp_path / "on GPUs", spec)))["training.log_every_steps"] == 10


def _values(run: TrainerRun) -> dict[str, Any]:
    """Return a run's values of the fields that are `auto` in its spec."""
    held = run.spec.model_dump()
    paths = [path.split(".") for path in auto_values(run.submitted, "cpu")]
    return {".".join(path): held[path[0]][path[1]] for path in paths}


def test_roots_may_be_given_on_the_command_line(tmp_path: Path) -> None:
    run = opened(write(tmp_path, {}), checkpoints="/elsewhere", data="/texts")
    assert run.checkpoint_root == Path("/elsewhere")
    assert run.attempt.roots == {"checkpoints": "/elsewhere", "data": "/texts"}


def test_an_attempt_changes_the_spec_by_its_overrides(tmp_path: Path) -> None:
    attempt = AttemptSpec(
        job_id="job-1",
        attempt=4,
        layout=Layout(dp_shard=2),
        overrides=Overrides(micro_batch_size=2, steps=500),
        roots={"checkpoints": "/here"},
        cache_dir="/cache",
    )
    run = opened(write(tmp_path, {"training": {"steps": 200}}, attempt))
    assert (run.spec.training.micro_batch_size, run.spec.training.steps) == (2, 500)
    assert run.spec.schedule_steps == 200, "more steps do not stretch the schedule"
    assert run.submitted.training.steps == 200
    assert (run.checkpoint_root, run.cache_dir) == (Path("/here"), Path("/cache"))


@pytest.mark.parametrize(
    ("spec", "world_size", "message"),
    [
        ({"training": {"stepps": 5}}, 2, "/training/stepps: unknown field"),
        ({"checkpoint": {"staging_gib": 1.0}}, 2, "no rank writes shards of others"),
        (
            {"parallelism": {"dp_shard": 2}, "resources": {"world_size": 2}},
            3,
            "dp_replicate x dp_shard x cp x tp x pp = 2, but world_size=3",
        ),
        ({}, 5, "dp=5 is more than the 4 micro-batches of global_batch_size=16"),
    ],
)
def test_what_cannot_run_is_refused(
    spec: dict[str, Any], world_size: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(LaunchError) as caught:
        opened(write(tmp_path, spec), world_size)
    assert message in str(caught.value)


def test_a_missing_spec_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"spec\.json: .*No such file"):
        opened(tmp_path)


def test_the_layout_must_have_as_many_ranks_as_were_launched(tmp_path: Path) -> None:
    attempt = AttemptSpec(job_id="j", layout=Layout(dp_shard=2), roots={"checkpoints": "/c"})
    with pytest.raises(LaunchError, match=r"layout FSDP 2 has world_size=2, but 3 ranks were"):
        opened(write(tmp_path, {}, attempt), 3)


def test_an_attempt_must_name_the_root_of_its_checkpoints(tmp_path: Path) -> None:
    attempt = AttemptSpec(
        job_id="j",
        layout=Layout(),
        overrides=Overrides(checkpoint=CheckpointSection(root="fast")),
        roots={"checkpoints": "/c"},
    )
    with pytest.raises(LaunchError, match=r"checkpoint.root='fast' is not .* \(defined: checkp"):
        opened(write(tmp_path, {}, attempt), 1)


@pytest.mark.parametrize("record", ["outcome.json", "error.json", "metrics.jsonl"])
def test_a_used_directory_is_refused(record: str, tmp_path: Path) -> None:
    refuse_used(RunDirectory(write(tmp_path, {})))
    (tmp_path / record).touch()
    with pytest.raises(LaunchError, match=f"{record} is there: a run directory serves one attempt"):
        refuse_used(RunDirectory(tmp_path))


def test_a_layout_that_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    attempt = AttemptSpec(job_id="j", layout=Layout(tp=3), roots={"checkpoints": "/c"})
    with pytest.raises(LaunchError, match=r"under attempt.json: /parallelism/tp: tp=3 does not"):
        opened(write(tmp_path, {}, attempt), 3)


def test_the_launch_is_judged_and_not_what_the_spec_asks_for(tmp_path: Path) -> None:
    resources = {"world_size": 4, "nodes": 2, "spare_nodes": 1}
    wide = {"resources": resources, "training": {"micro_batch_size": 16}}
    assert opened(write(tmp_path, wide), 1).attempt.layout == Layout()
    with pytest.raises(LaunchError, match="dp=2 is more than the 1 micro-batches"):
        opened(tmp_path, 2)


def test_every_fault_of_an_attempt_is_named_by_its_field(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "attempt.json").write_text('{"job_id": "j", "layout": {"tp": 0}, "foo": 1}')
    with pytest.raises(LaunchError) as caught:
        opened(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'attempt.json'}: /layout/tp: Input should be greater than or equal to 1, "
        "got 0; /foo: unknown field"
    )


CHECK = """
import sys
from trainer.__main__ import main
sys.argv[1:1] = ["check"]
code = main()
assert not {"torch", "trainer.loop.train"} & set(sys.modules), "the check needs no torch"
sys.exit(code)
"""


def check(run: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHECK, str(run), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_an_empty_corpus_fails_the_check_without_torch(tmp_path: Path) -> None:
    (tmp_path / "texts" / "empty").mkdir(parents=True)
    run = write(tmp_path / "run", {"data": {"source": "text", "path": "data:empty"}})
    done = check(run, "--root", f"data={tmp_path / 'texts'}")
    assert done.returncode == 1, done.stderr
    outcome = parse_record(Outcome, (run / "outcome.json").read_text())
    assert outcome.failure is not None
    assert (outcome.outcome, outcome.failure.reason) == ("failed", "data_error")
    assert outcome.failure.path == str(tmp_path / "texts" / "empty")
    assert "is empty" in outcome.failure.message


def test_a_check_may_be_repeated_until_it_finds_nothing(tmp_path: Path) -> None:
    for steps in ("5", "6"):
        done = check(write(tmp_path, {"training": {"steps": steps}}))
        assert done.returncode == 1
        assert f"/training/steps: Input should be a valid integer, got '{steps}'" in done.stderr
        assert "Traceback" not in done.stderr, "what a user mistyped is no crash"
    assert check(write(tmp_path, {})).returncode == 0
    assert [p.name for p in tmp_path.iterdir()] == ["spec.json"]


def test_a_check_leaves_the_records_of_a_launch(tmp_path: Path) -> None:
    write(tmp_path, {})
    for name in ("heartbeat.json", "outcome.json"):
        (tmp_path / name).touch()
    done = check(tmp_path)
    assert (done.returncode, (tmp_path / "outcome.json").exists()) == (1, True)
    assert "serves one attempt" in done.stderr


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    done = check(tmp_path / "nowhere")
    assert done.returncode == 2
    assert "nowhere' is no folder; make it, with spec.json in it" in done.stderr


def test_a_check_without_findings_leaves_nothing(tmp_path: Path) -> None:
    done = check(write(tmp_path / "run", {}))
    assert done.returncode == 0, done.stderr
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["spec.json"]

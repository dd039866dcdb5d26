"""Validation: one value on any layout, no effect on training, and use of small splits."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.runs import JOB, SPEC, Meddling, SmallJob
from trainer.data.dataset import open_dataset
from trainer.models.families import build_model
from trainer.models.initial_weights import init_weights
from trainer.run import open_run
from trainyard.spec.layout import Layout

TWO = Layout(dp_shard=2)


def validated_job(folder: Path, *, batches: int = 2, **training: Any) -> SmallJob:
    return SmallJob(folder).changed(
        folder,
        training={"steps": 8, **training},
        data={"validation_fraction": 0.1},
        validation={"interval_steps": 3, "batches": batches},
    )


def test_it_runs_at_its_interval_and_after_the_last_step(tmp_path: Path) -> None:
    attempt = validated_job(tmp_path, log_every_steps=5).launch(1, TWO)
    found = attempt.values("validation/loss")
    assert list(found) == list(attempt.values("validation/seconds")) == [3, 6, 8]
    assert found[8] < found[3] < 6.0, "it learns what held-out text has in common with the rest"
    # A validated step has its other values too; 1 is the first one, 5 follows from the interval.
    assert list(attempt.values("train/loss")) == [1, 3, 5, 6, 8]


@pytest.mark.parametrize("layout", [TWO, Layout(dp_shard=2, pp=2)], ids=str)
def test_it_leaves_no_trace(layout: Layout, tmp_path: Path) -> None:
    """With dropout; weights and moments are bitwise equal to a run without validation."""
    with_it = validated_job(tmp_path / "with", steps=5)  # two after the first validation
    without = with_it.changed(tmp_path / "without", validation={"interval_steps": 0})
    attempts = [job.launch(1, layout) for job in (with_it, without)]
    for name in ("train/loss", "train/grad_norm"):
        assert attempts[0].values(name) == attempts[1].values(name)
    assert attempts[0].digests == attempts[1].digests
    saved = [job.committed()[f"{JOB}.a1.step-5"] for job in (with_it, without)]
    files = [{f.path: f.xxh3_128 for f in manifest.files} for manifest in saved]
    assert files[0] == files[1]
    assert not attempts[1].values("validation/loss")


def test_it_is_the_mean_loss_without_dropout(tmp_path: Path) -> None:
    """With a tiny learning rate, the model remains the initial one."""
    job = validated_job(tmp_path, steps=3).changed(
        tmp_path, optimizer={"lr": 1e-12}, lr_schedule={"warmup_steps": 0}
    )
    found = job.launch(1, TWO).values("validation/loss")[3]
    run = open_run(tmp_path / "runs" / "1", world_size=2, roots={})
    dataset = open_dataset(
        run.spec, roots=run.attempt.roots, cache_dir=run.cache_dir, on_progress=lambda: None
    )
    assert dataset.validation is not None
    model = build_model(run.spec)
    model.to_empty(device="cpu")
    init_weights(model, run.spec.training.seed)
    windows_BT = torch.from_numpy(dataset.validation.windows(np.arange(32)))
    logits_BSV = model(windows_BT[:, :-1])
    expected = torch.nn.functional.cross_entropy(
        logits_BSV.flatten(0, 1), windows_BT[:, 1:].flatten()
    )
    assert found == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(),
        Layout(dp_shard=3),
        pytest.param(Layout(dp_replicate=2), marks=pytest.mark.slow),
        Layout(tp=2),
        Layout(cp=2),
    ],
    ids=str,
)
def test_every_layout_gives_the_same_value(layout: Layout, tmp_path: Path) -> None:
    """Also with a split of fewer sequences than requested, and of no whole number of batches."""
    assert_same_value(tmp_path, layout)


@pytest.mark.parametrize(
    ("layout", "schedule"),
    [
        (Layout(pp=2), "1F1B"),
        (Layout(pp=2), "Interleaved1F1B"),
        (Layout(pp=2), "ZBVZeroBubble"),
        (Layout(dp_shard=2, pp=2), "1F1B"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (Layout(pp=2), "GPipe"),
                (Layout(pp=2), "InterleavedZeroBubble"),
                (Layout(tp=2, pp=2), "1F1B"),
                (Layout(cp=2, pp=2), "Interleaved1F1B"),
            )
        ),
    ],
    ids=str,
)
def test_every_pipeline_gives_the_same_value(layout: Layout, schedule: str, tmp_path: Path) -> None:
    """Schedules run forward only; a rank may hold two stages, or the first and the last one."""
    assert_same_value(
        tmp_path, layout, model={"n_layers": 4}, parallelism={"pp_schedule": schedule}
    )


@pytest.mark.slow
def test_compiled_blocks_in_a_pipeline_give_the_same_value(tmp_path: Path) -> None:
    """Validation compiles its own programs: nothing is kept for backward, nothing is dropped."""
    compiled = {"enabled": True, "backend": "aot_eager"}
    assert_same_value(tmp_path, Layout(cp=2, pp=2), compile=compiled)


def assert_same_value(folder: Path, layout: Layout, **sections: dict[str, Any]) -> None:
    """Check that a split with fewer sequences than requested has the value of two FSDP ranks."""
    n_layers = sections.get("model", {}).get("n_layers", SPEC["model"]["n_layers"])
    job = validated_job(folder, batches=1000, steps=5).changed(folder, **sections)
    values = job.launch(1, layout).values("validation/loss")
    assert list(values) == [3, 5]
    assert values == pytest.approx(on_two_ranks(n_layers), rel=1e-5)


@cache
def on_two_ranks(n_layers: int) -> dict[int, float]:
    """Return the values of all held-out sequences on two FSDP ranks."""
    with TemporaryDirectory() as name:
        job = validated_job(Path(name), batches=1000, steps=5)
        job = job.changed(Path(name), model={"n_layers": n_layers})
        return job.launch(1, TWO).values("validation/loss")


def test_a_resumed_run_validates_at_the_same_steps(tmp_path: Path) -> None:
    whole = validated_job(tmp_path / "whole").launch(1, TWO).values("validation/loss")
    job = validated_job(tmp_path / "resumed")
    first = job.launch(1, TWO, Meddling(stop_after=3))
    last = job.committed()[str(first.outcome.checkpoint_id)]
    second = job.launch(2, TWO, resume=last)
    assert first.values("validation/loss") | second.values("validation/loss") == whole


@pytest.mark.parametrize("layout", [TWO, Layout()], ids=str)
def test_what_a_stop_leaves_out_is_made_up_at_the_resume(tmp_path: Path, layout: Layout) -> None:
    whole = validated_job(tmp_path / "whole").launch(1, TWO)
    job = validated_job(tmp_path / "stopped")
    first = job.launch(1, TWO, Meddling(stop_after=2))
    assert first.outcome.step == 3
    assert not first.values("validation/loss"), "a stop waits for no validation"
    last = job.committed()[str(first.outcome.checkpoint_id)]
    second = job.launch(2, layout, resume=last)
    found = second.values("validation/loss")
    assert list(found) == [3, 6, 8], "the value of step 3 belongs to step 3"
    expected = whole.values("validation/loss")
    assert found == (expected if layout == TWO else pytest.approx(expected, rel=1e-5))
    steps = range(4, 9)
    assert [second.digests[step] for step in steps] == [whole.digests[step] for step in steps]
    if layout == TWO:
        assert second.values("train/loss")[8] == whole.values("train/loss")[8]


def test_only_what_is_due_is_made_up(tmp_path: Path) -> None:
    job = validated_job(tmp_path)
    first = job.launch(1, TWO, Meddling(stop_after=3))
    assert first.outcome.step == 4
    second = job.launch(2, TWO, resume=job.committed()[str(first.outcome.checkpoint_id)])
    assert list(second.values("validation/loss")) == [6, 8]


def test_a_stop_in_the_last_step_validates_after_the_last_save(tmp_path: Path) -> None:
    attempt = validated_job(tmp_path).launch(1, TWO, Meddling(stop_after=7))
    assert (attempt.outcome.outcome, attempt.outcome.step) == ("succeeded", 8)
    *_, last = [line for line in (attempt.run / "metrics.jsonl").read_text().splitlines() if line]
    assert '"step":8,' in last.replace(" ", "")
    assert "validation/loss" in last

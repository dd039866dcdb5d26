"""A stop with a deadline: no save starts that cannot end in time."""

from __future__ import annotations

from pathlib import Path

from tests.trainer.runs import JOB, Meddling, SmallJob
from trainyard.spec.layout import Layout

TWO = Layout(dp_shard=2)


def small(folder: Path) -> SmallJob:
    return SmallJob(folder).changed(
        folder,
        training={"steps": 15},
        lr_schedule={"warmup_steps": 5},
        checkpoint={"interval_steps": 5, "preflight": True},
    )


def test_a_save_that_does_not_fit_is_left_out_and_the_job_goes_on_from_the_last(
    tmp_path: Path,
) -> None:
    job = small(tmp_path / "job")
    first = job.launch(1, TWO, Meddling(stop_after=7, stop_in=0.0))
    assert (first.outcome.outcome, first.outcome.step) == ("stopped", 8)
    assert first.outcome.checkpoint_id == f"{JOB}.a1.step-5"
    assert f"{JOB}.a1.step-8" not in job.committed()
    second = job.launch(2, TWO, resume=job.committed()[f"{JOB}.a1.step-5"])
    assert second.outcome.outcome == "succeeded"
    whole = small(tmp_path / "whole").launch(1, TWO)
    assert second.digests == {s: d for s, d in whole.digests.items() if s > 5}
    assert second.values("train/loss")[15] == whole.values("train/loss")[15]


def test_a_save_that_fits_is_made(tmp_path: Path) -> None:
    job = small(tmp_path)
    attempt = job.launch(1, TWO, Meddling(stop_after=7, stop_in=3600.0))
    assert attempt.outcome.checkpoint_id == f"{JOB}.a1.step-8"
    assert f"{JOB}.a1.step-8" in job.committed()


def test_without_a_former_save_nothing_is_left_out(tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(tmp_path, checkpoint={"interval_steps": 0, "preflight": False})
    attempt = job.launch(1, TWO, Meddling(stop_after=3, stop_in=0.0))
    assert attempt.outcome.checkpoint_id == f"{JOB}.a1.step-4"

"""One job through every kind of layout: sample-exact, its losses on the uninterrupted curve."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.runs import Attempt, Meddling, SmallJob
from trainyard.spec.layout import Layout

STEPS = 36
LOSS_TOLERANCE = 1e-4  # relative, float32

CHAIN = [
    Layout(dp_shard=4),
    Layout(tp=2, dp_shard=2),
    Layout(pp=2, dp_shard=2),
    Layout(cp=2),
    Layout(dp_shard=3),  # 3 does not divide the global batch of 16
    Layout(),
]


def packed_job(folder: Path) -> SmallJob:
    """Return the small job with dropout on many short documents, packed with a document mask."""
    job = SmallJob(folder).changed(
        folder,
        data={"path": "data:documents", "document_masks": True},
        training={"steps": STEPS, "seq_len": 64},
    )
    job.write_documents()
    return job


def test_a_job_goes_through_every_kind_of_layout(tmp_path: Path) -> None:
    whole = packed_job(tmp_path / "whole").launch(1, Layout(dp_shard=2))
    job, resume = packed_job(tmp_path / "chain"), None
    attempts: list[Attempt] = []
    for number, layout in enumerate(CHAIN, start=1):
        stop_at = STEPS * number // len(CHAIN)
        attempt = job.launch(number, layout, Meddling(stop_after=stop_at - 1), resume=resume)
        assert attempt.outcome.step == stop_at
        assert attempt.outcome.checkpoint_id is not None
        resume = job.committed()[attempt.outcome.checkpoint_id]
        assert resume.layout == layout
        attempts.append(attempt)

    assert attempts[-1].outcome.outcome == "succeeded"
    digests = {step: digest for a in attempts for step, digest in a.digests.items()}
    assert digests == whole.digests
    for name in ("train/lr", "train/tokens", "train/sequences"):
        assert _joined(attempts, name) == whole.values(name)
    losses = _joined(attempts, "train/loss")
    assert losses == pytest.approx(whole.values("train/loss"), rel=LOSS_TOLERANCE)
    assert losses[STEPS] < 0.9 * losses[1], "it learns, so that equal losses mean something"


def _joined(attempts: list[Attempt], name: str) -> dict[int, float]:
    return {step: value for a in attempts for step, value in a.values(name).items()}

"""One job, whatever its world size: the same sequences, schedule and counters, the same loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.runs import Attempt, Meddling, SmallJob
from trainyard.protocol.attempt import Overrides
from trainyard.spec.layout import Layout

STEPS = 60
LOSS_TOLERANCE = 1e-4  # relative, float32

# Layout, the step at which the attempt is stopped (none: it ends), and a micro-batch size.
Leg = tuple[Layout, int | None, int | None]
FSDP_2_4_3_1: list[Leg] = [
    (Layout(dp_shard=2), 15, None),
    (Layout(dp_shard=4), 30, None),
    (Layout(dp_shard=3), 45, None),  # 3 does not divide the global batch of 16
    (Layout(dp_shard=1), None, None),
]
HSDP_AND_MICRO_BATCHES: list[Leg] = [
    (Layout(dp_replicate=2, dp_shard=2), 20, None),
    (Layout(dp_shard=3), 40, 5),  # the last of four micro-batches holds one sequence
    (Layout(dp_replicate=2, dp_shard=1), None, 1),
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Attempt:
    """The uninterrupted job on two ranks."""
    attempt = SmallJob(tmp_path_factory.mktemp("whole")).launch(1, Layout(dp_shard=2))
    assert attempt.outcome.outcome == "succeeded"
    assert list(attempt.lines) == list(range(1, STEPS + 1))
    return attempt


@pytest.mark.parametrize("legs", [FSDP_2_4_3_1, HSDP_AND_MICRO_BATCHES], ids=["FSDP", "HSDP"])
def test_a_job_that_changes_its_world_size_is_the_same_job(
    legs: list[Leg], uninterrupted: Attempt, tmp_path: Path
) -> None:
    job = SmallJob(tmp_path)
    attempts, resume = [], None
    for number, (layout, stop_at, micro_batch_size) in enumerate(legs, start=1):
        attempt = job.launch(
            number,
            layout,
            Meddling(stop_after=stop_at - 1 if stop_at else None),
            resume=resume,
            overrides=Overrides(micro_batch_size=micro_batch_size),
        )
        assert attempt.outcome.outcome == ("stopped" if stop_at else "succeeded")
        assert attempt.outcome.step == (stop_at or STEPS)
        assert attempt.outcome.checkpoint_id is not None
        resume = job.committed()[attempt.outcome.checkpoint_id]
        assert resume.layout == layout
        attempts.append(attempt)

    assert _joined(attempts, "digests") == uninterrupted.digests
    for name in ("train/lr", "train/tokens", "train/sequences"):
        assert _joined_values(attempts, name) == uninterrupted.values(name)
    losses, expected = _joined_values(attempts, "train/loss"), uninterrupted.values("train/loss")
    assert losses == pytest.approx(expected, rel=LOSS_TOLERANCE)
    assert losses[STEPS] < 0.8 * losses[1], "it learns, so that equal losses mean something"


def test_one_wrong_sequence_is_seen(uninterrupted: Attempt, tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(tmp_path, training={"steps": 5})
    position = 3 * 16 + 7  # step 4
    attempt = job.launch(1, Layout(dp_shard=2), Meddling(wrong_position=position))
    wrong = [s for s, digest in attempt.digests.items() if digest != uninterrupted.digests[s]]
    assert wrong == [4]


def _joined(attempts: list[Attempt], what: str) -> dict[int, object]:
    parts = [getattr(attempt, what) for attempt in attempts]
    joined = {step: value for part in parts for step, value in part.items()}
    assert len(joined) == sum(map(len, parts)), "two attempts wrote the same step"
    return joined


def _joined_values(attempts: list[Attempt], name: str) -> dict[int, float]:
    parts = [attempt.values(name) for attempt in attempts]
    return {step: value for part in parts for step, value in part.items()}

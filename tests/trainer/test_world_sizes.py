"""From every world size to every other, and through every kind of layout, sample-exact.

Dropout is on, so the random state counts. The loaded state is compared bit for bit, from the
preflight of the loading attempt. The results are compared with the uninterrupted curve.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.trainer.runs import JOB, Attempt, Meddling, SmallJob
from tests.trainer.stored import stored_tensors
from trainyard.protocol.manifest import Manifest
from trainyard.spec.layout import Layout

LOSS_TOLERANCE = 1e-4  # relative, float32
EXACT = ("train/lr", "train/tokens", "train/sequences")

SIZES = [Layout(dp_shard=ranks) for ranks in (1, 2, 3, 4, 6, 8)]
MIXED = [Layout(tp=2), Layout(pp=2), Layout(dp_replicate=2, dp_shard=2), Layout(cp=2)]
LAYOUTS = SIZES + MIXED
# Each layout is saved from once and loaded on once: 3 and 6 do not divide the global batch of 16.
ROUND = [LAYOUTS[index] for index in (0, 5, 2, 6, 4, 7, 3, 8, 1, 9, 0)]
LEG = 2  # steps of an attempt
PAIRS_FROM, PAIRS_TO = 4, 6  # the step that is saved, and the last one


def job_of(folder: Path, *, steps: int) -> SmallJob:
    """Return the small job with a schedule that moves the learning rate at every step."""
    training = {"steps": steps, "log_every_steps": 1, "micro_batch_size": 2}  # one a rank of eight
    return SmallJob(folder).changed(folder, training=training)


@pytest.mark.timeout(600)  # some ten seconds where there is a core for each rank
def test_a_round_through_all_sizes_and_kinds_of_layouts(tmp_path: Path) -> None:
    steps = LEG * len(ROUND)
    whole = job_of(tmp_path / "whole", steps=steps).launch(1, Layout(dp_shard=2))
    job, saved = job_of(tmp_path / "round", steps=steps), None
    for number, layout in enumerate(ROUND, start=1):
        end = LEG * number
        attempt = job.launch(number, layout, Meddling(stop_after=end - 1), resume=saved)
        if saved is not None:
            check_loaded(job, saved, by=number)
        check_curve(attempt, whole, range(end - LEG + 1, end + 1))
        assert attempt.outcome.checkpoint_id is not None
        saved = job.committed()[attempt.outcome.checkpoint_id]
        assert saved.layout == layout
    losses = whole.values("train/loss")
    assert losses[steps] < 0.95 * losses[1], "it learns, so that equal losses mean something"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Attempt:
    """The uninterrupted job of the pairs."""
    return job_of(tmp_path_factory.mktemp("whole"), steps=PAIRS_TO).launch(1, Layout(dp_shard=2))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("source", LAYOUTS, ids=str)
def test_every_pair(source: Layout, whole: Attempt, tmp_path: Path) -> None:
    job = job_of(tmp_path, steps=PAIRS_TO)
    job.launch(1, source, Meddling(stop_after=PAIRS_FROM - 1))
    saved = job.committed()[f"{JOB}.a1.step-{PAIRS_FROM}"]
    for number, target in enumerate(LAYOUTS, start=2):
        attempt = job.launch(number, target, resume=saved)
        assert attempt.outcome.outcome == "succeeded"
        check_loaded(job, saved, by=number)
        check_curve(attempt, whole, range(PAIRS_FROM + 1, PAIRS_TO + 1))


def test_other_dropout_masks_would_be_seen(whole: Attempt, tmp_path: Path) -> None:
    """A lost random state changes the loss by more than the tolerance in the first step."""
    job = job_of(tmp_path, steps=PAIRS_TO)
    job.launch(1, Layout(), Meddling(stop_after=PAIRS_FROM - 1))
    saved = job.committed()[f"{JOB}.a1.step-{PAIRS_FROM}"]
    without = replace(job, spec={**job.spec, "model": {**job.spec["model"], "dropout": 0.0}})
    losses = without.launch(2, Layout(), resume=job.older(saved)).values("train/loss")
    step = PAIRS_FROM + 1
    assert losses[step] != pytest.approx(whole.values("train/loss")[step], rel=LOSS_TOLERANCE)


def check_curve(attempt: Attempt, whole: Attempt, steps: range) -> None:
    """Compare sequences, counters and schedule exactly, and losses within rounding."""
    assert list(attempt.lines) == list(steps)
    assert attempt.digests == {step: whole.digests[step] for step in steps}
    for name in EXACT:
        assert attempt.values(name) == {step: whole.values(name)[step] for step in steps}
    for name in ("train/loss", "train/grad_norm"):
        expected = {step: whole.values(name)[step] for step in steps}
        assert attempt.values(name) == pytest.approx(expected, rel=LOSS_TOLERANCE)


def check_loaded(job: SmallJob, saved: Manifest, *, by: int) -> None:
    """Compare an attempt's save before its first step with its parent checkpoint."""
    step = saved.train_state.step
    loaded = job.committed()[f"{JOB}.a{by}.step-{step}"]
    assert loaded.kind == "preflight"
    assert loaded.train_state == saved.train_state
    before, after = stored_tensors(job, saved), stored_tensors(job, loaded)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor), name
    # The comparison is void unless both moments and the counter have values.
    assert all(tensor.any() for name, tensor in before.items() if name.startswith("optimizer."))

"""Runs with each form of optimizer state: they learn, stop, change layout and continue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import JOB, Attempt, Meddling, SmallJob
from trainyard.protocol.attempt import Overrides
from trainyard.spec.layout import Layout

TWO = Layout(dp_shard=2)


def short_job(folder: Path, **optimizer: Any) -> SmallJob:
    training = {"steps": 12}
    return SmallJob(folder).changed(folder, training=training, optimizer=optimizer)


@pytest.mark.parametrize(
    "optimizer", [{"state_dtype": "bfloat16"}, {"name": "adam"}], ids=["bfloat16", "adam"]
)
def test_a_run_moves_to_other_world_sizes(optimizer: dict[str, Any], tmp_path: Path) -> None:
    whole = short_job(tmp_path / "whole", **optimizer).launch(1, TWO)
    job = short_job(tmp_path / "moved", **optimizer)
    attempts = [job.launch(1, TWO, Meddling(stop_after=3))]
    for number, layout, stop_after in (
        (2, TWO, 5),
        (3, Layout(dp_shard=3), 8),
        (4, Layout(), None),
    ):
        last = job.committed()[str(attempts[-1].outcome.checkpoint_id)]
        attempts.append(job.launch(number, layout, Meddling(stop_after=stop_after), resume=last))
    expected, got = whole.values("train/loss"), joined(attempts, "train/loss")
    assert list(got) == list(range(1, 13))
    same_layout = {step: got[step] for step in range(1, 7)}
    assert same_layout == {step: expected[step] for step in same_layout}, "bit by bit"
    # Moments may round the other way if their sums differ in the last place.
    assert got == pytest.approx(expected, rel=1e-4 if optimizer.get("state_dtype") else 1e-6)
    assert expected[12] < expected[1]


@pytest.mark.parametrize(
    "layout",
    [
        Layout(),
        TWO,
        Layout(dp_replicate=2, dp_shard=2),
        Layout(pp=2),
        pytest.param(Layout(dp_shard=2, pp=2), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_offloaded_states_change_nothing(layout: Layout, tmp_path: Path) -> None:
    """Several rounds in a step included; on a CPU it is FSDP's own path without the copies."""
    losses = []
    for offload in (False, True):
        folder = tmp_path / str(offload)
        job = short_job(folder, cpu_offload=offload)
        attempts = [job.launch(1, layout, Meddling(stop_after=4))]
        last = job.committed()[str(attempts[0].outcome.checkpoint_id)]
        attempts.append(job.launch(2, layout, resume=last))
        losses.append(joined(attempts, "train/loss"))
    assert list(losses[0]) == list(range(1, 13))
    # A rank that shares no weights is sharded only for offloading: sums in another order.
    alone = layout.world_size == layout.pp
    assert losses[1] == pytest.approx(losses[0], rel=1e-6 if alone else 0)


@pytest.mark.slow
def test_a_resume_switches_offloading_and_changes_no_bit(tmp_path: Path) -> None:
    whole = short_job(tmp_path / "whole").launch(1, TWO).values("train/loss")
    job = short_job(tmp_path / "switched")
    attempts: list[Attempt] = []
    for number, (offload, stop) in enumerate(((False, 4), (True, 7), (False, None)), start=1):
        last = job.committed()[str(attempts[-1].outcome.checkpoint_id)] if attempts else None
        overrides = Overrides(cpu_offload=offload)
        meddling = Meddling(stop_after=stop)
        attempts.append(job.launch(number, TWO, meddling, resume=last, overrides=overrides))
    assert joined(attempts, "train/loss") == whole


@pytest.mark.parametrize(
    "schedule",
    [
        "ZBVZeroBubble",
        pytest.param("Interleaved1F1B", marks=pytest.mark.slow),
        pytest.param("InterleavedZeroBubble", marks=pytest.mark.slow),
    ],
)
def test_a_pipeline_rank_offloads_each_of_its_stages(schedule: str, tmp_path: Path) -> None:
    """Two stages of a rank are two roots of FSDP, which move their weights independently."""
    losses = []
    for offload in (False, True):
        folder = tmp_path / str(offload)
        job = short_job(folder, cpu_offload=offload).changed(
            folder,
            model={"n_layers": 4},
            training={"steps": 4},
            lr_schedule={"warmup_steps": 1},
            parallelism={"pp_schedule": schedule},
        )
        losses.append(job.launch(1, Layout(pp=2)).values("train/loss"))
    assert list(losses[0]) == [1, 2, 3, 4]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def joined(attempts: list[Attempt], name: str) -> dict[int, float]:
    return {step: value for attempt in attempts for step, value in attempt.values(name).items()}


def test_moments_in_bfloat16_take_half_the_space_and_learn_alike(tmp_path: Path) -> None:
    sizes, losses = {}, {}
    for dtype in ("float32", "bfloat16"):
        job = short_job(tmp_path / dtype, state_dtype=dtype)
        losses[dtype] = job.launch(1, TWO).values("train/loss")
        sizes[dtype] = job.committed()[f"{JOB}.a1.step-12"].size
    # Weights and two moments: 12 bytes an element, or 8.
    assert sizes["bfloat16"] / sizes["float32"] == pytest.approx(8 / 12, abs=0.05)
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=1e-3)


def test_weights_in_bfloat16_move_to_other_world_sizes(tmp_path: Path) -> None:
    """One rank computes with them directly, several through FSDP."""
    losses = {}
    for dtype in ("float32", "bfloat16"):
        folder = tmp_path / dtype
        job = short_job(folder, state_dtype="bfloat16").changed(
            folder, training={"param_dtype": "bfloat16", "weight_dtype": dtype}
        )
        attempts = [job.launch(1, Layout(), Meddling(stop_after=5))]
        saved = job.committed()[str(attempts[0].outcome.checkpoint_id)]
        attempts.append(job.launch(2, TWO, resume=saved))
        losses[dtype] = joined(attempts, "train/loss")
        last = job.committed()[str(attempts[1].outcome.checkpoint_id)]
        assert saved.param_dtype == last.param_dtype == dtype
    assert list(losses["bfloat16"]) == list(range(1, 13))
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=1e-2)

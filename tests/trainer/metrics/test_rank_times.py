"""Times of all ranks of a real run: the slow rank is found, and training is unchanged."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import pytest

from tests.trainer.points import at_points
from tests.trainer.ranks import run_ranks
from tests.trainer.runs import Attempt, Meddling, SmallJob, train_rank
from trainer.checkpoint.save_folder import Point
from trainer.metrics.stragglers import FOUND_LINES, WINDOW
from trainer.storage.root import StoragePath
from trainyard.spec.layout import Layout

SLOW = 0.2
EXACT = ("train/loss", "train/grad_norm")


def run_of(folder: Path, layout: Layout, meddling: Meddling, *, steps: int) -> Attempt:
    job = SmallJob(folder).changed(folder, training={"steps": steps})
    return job.launch(1, layout, meddling)


def own(attempt: Attempt, rank: int) -> float:
    values = attempt.values(f"ranks/own_seconds/{rank}")
    return median(values.values())


@pytest.mark.parametrize(
    "layout", [Layout(dp_shard=2), Layout(dp_shard=1, tp=2), Layout(dp_shard=1, pp=2)], ids=str
)
def test_the_slow_rank_has_the_own_time_and_the_others_wait(layout: Layout, tmp_path: Path) -> None:
    attempt = run_of(tmp_path, layout, Meddling(slow=(1, SLOW)), steps=8)
    # The first line of an attempt has none.
    assert list(attempt.values("ranks/own_seconds/0")) == list(range(2, 9))
    # Bounds for a busy machine: either rank loses tens of milliseconds to other processes.
    assert SLOW / 2 < own(attempt, 1) - own(attempt, 0) < 2 * SLOW
    if layout.pp == 1:  # the bubble of a pipeline differs from stage to stage
        least = median(attempt.values("ranks/wait_seconds_min").values())
        middle = median(attempt.values("ranks/wait_seconds_median").values())
        assert SLOW / 2 < 2 * (middle - least) < 2 * SLOW, "the median of two is their mean"


def test_a_straggler_is_found_by_name(tmp_path: Path) -> None:
    slow = Meddling(slow=(1, 1.5 * SLOW))
    attempt = run_of(tmp_path, Layout(dp_shard=2), slow, steps=WINDOW + 5)
    (found,) = [event for event in attempt.events if event.kind == "straggler_found"]
    assert (found.data["rank"], found.data["kind"]) == (1, "compute")
    # The first line does not count; on a busy machine some others may not.
    assert FOUND_LINES < found.step <= WINDOW + 1
    assert 0.3 < float(str(found.data["share"])) <= 1
    times = [event.data["ranks"] for event in attempt.events if event.kind == "rank_times"]
    assert len(times) == 2, "at the first line, and with the straggler"
    assert [span["rank"] for span in times[-1]] == [0, 1]  # type: ignore[attr-defined]


def test_the_times_change_no_value(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain = run_of(tmp_path / "plain", Layout(dp_shard=2), Meddling(), steps=6)
    slow = run_of(tmp_path, Layout(dp_shard=2), Meddling(slow=(0, 0.05)), steps=6)
    for name in EXACT:
        assert plain.values(name) == slow.values(name)
    assert plain.digests == slow.digests


def test_a_save_of_one_rank_is_no_slowness(tmp_path: Path) -> None:
    """Every second step is saved, and a save is a pause of all ranks.

    It takes longer than the delay of a step on a busy machine.
    """
    job = SmallJob(tmp_path).changed(
        tmp_path, training={"steps": 12}, checkpoint={"interval_steps": 2}
    )
    run = job.prepare(1, Layout(dp_shard=2))
    run_ranks(2, _train_with_slow_saves, str(run), initialize=False)
    attempt = Attempt(run)
    saved = attempt.values("checkpoint/stall_seconds")
    own_of_all = attempt.values("ranks/own_seconds_max")
    stalled = [own_of_all[step] for step in saved if step in own_of_all]
    others = [seconds for step, seconds in own_of_all.items() if step not in saved]
    assert median(stalled) < median(others) + median(saved.values()) / 2


def _train_with_slow_saves(run_directory: str) -> None:
    def pause(point: Point, _path: StoragePath) -> None:
        if point is Point.BEGUN:
            time.sleep(SLOW)

    with at_points(pause):
        train_rank(run_directory, Meddling())


def test_a_single_rank_has_no_times(tmp_path: Path) -> None:
    attempt = run_of(tmp_path, Layout(), Meddling(), steps=6)
    assert not any(
        name.startswith("ranks/") for line in attempt.lines.values() for name in line.values
    )

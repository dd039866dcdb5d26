"""The goodput of a job with injected faults: its ledger, and a what-if that is then followed.

Two jobs train the same steps at the same time, so that other load of this machine delays the
start-ups of both. In both, a rank and later the supervisor are killed after the same steps; only
the save interval differs. The records of each forecast the goodput of the other.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.control_plane import ControlPlane, Run, cancel_all, spec, wait_for
from trainyard.client.sdk import Client
from trainyard.protocol.goodput import (
    GoodputView,
    SaveIntervalWhatIf,
    TimeCategory,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SLOTS, RANKS = 5, 2
STEPS, STEP_SECONDS = 360, 0.3
OFTEN, SELDOM = 25, 180
"""Steps between two saves."""
RANK_DIES_AFTER, SUPERVISOR_DIES_AFTER = 90, 140
"""Steps of the first and of the second attempt; with both intervals far from the next save."""
LIMIT_SECONDS = 400.0
POINTS = 0.02
"""Tolerated error of a forecast, as a part of the wall time."""
LOST_STEPS = 8
"""Tolerated error in steps: those that the stalls of the saves displace."""


@dataclass(frozen=True)
class Outcome:
    """An ended job, and its forecast with the interval of the other one."""

    job_id: str
    goodput: GoodputView
    forecast: SaveIntervalWhatIf


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane, with slots that no other test uses."""
    made = ControlPlane(tmp_path_factory.mktemp("goodput"), slots=SLOTS)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def client(plane: ControlPlane) -> Iterator[Client]:
    """A connection with the admin token, with the code of the model in place."""
    with plane.connect() as connection:
        shutil.copytree(Path(__file__).with_name("paced_model"), plane.folders.data / "paced")
        yield connection
        cancel_all(connection)


@pytest.fixture(scope="module")
def outcomes(plane: ControlPlane, client: Client) -> dict[int, Outcome]:
    """Run a job with each interval at the same time, and return them by the interval."""
    intervals = (OFTEN, SELDOM)
    with ThreadPoolExecutor(len(intervals)) as threads:
        job_ids = list(threads.map(partial(run_with_faults, plane), intervals))
    return {
        interval: Outcome(
            job_id, client.goodput(job_id), client.save_interval_what_if(job_id, other)
        )
        for interval, job_id, other in zip(intervals, job_ids, reversed(intervals), strict=True)
    }


def paced(interval: int) -> dict[str, Any]:
    """Return the spec of a job of two ranks with steps of a known duration."""
    made = spec(
        f"paced-{interval}",
        training={"steps": STEPS, "seq_len": 16, "global_batch_size": 4, "micro_batch_size": 2},
        checkpoint={"interval_steps": interval, "keep_latest_k": 0},
        retry={"max_retries": 2},
    )
    made["model"] = {
        "factory": "paced:build",
        "code": "data:paced",
        "arguments": {"width": 16, "seconds": STEP_SECONDS},
        "vocab_size": 320,
    }
    return made


def run_with_faults(plane: ControlPlane, interval: int) -> str:
    """Run a job, kill its rank 1 and its supervisor, and return its id once it has succeeded."""
    victims: tuple[tuple[int, Callable[[Run], int]], ...] = (
        (RANK_DIES_AFTER, lambda run: run.rank_pid(1)),
        (SUPERVISOR_DIES_AFTER, Run.supervisor_pid),
    )
    with plane.connect() as client:
        job_id = client.submit(paced(interval)).id
        for attempt, (steps, victim) in enumerate(victims, start=1):
            run = plane.run(job_id, attempt)
            wait_for(
                partial(has_trained, run, steps),
                f"{steps} steps of attempt {attempt}",
                seconds=LIMIT_SECONDS,
            )
            os.kill(victim(run), signal.SIGKILL)
        job = client.wait(job_id, timeout=LIMIT_SECONDS, poll_seconds=0.5)
        assert job.state == "succeeded"
        assert [each.number for each in client.attempts(job_id)] == [3, 2, 1]
    return job_id


def has_trained(run: Run, steps: int) -> bool:
    """Return whether an attempt has trained a number of steps."""
    taken = run.steps()
    return bool(taken) and taken[-1] - taken[0] + 1 >= steps


def test_each_millisecond_of_the_jobs_has_one_category(
    client: Client, outcomes: dict[int, Outcome]
) -> None:
    for interval, outcome in outcomes.items():
        view, job = outcome.goodput, client.job(outcome.job_id)
        assert (view.since, view.until) == (job.created_at, job.ended_at)
        assert view.wall_milliseconds == milliseconds(view.until) - milliseconds(view.since)
        spent = times(view)
        assert sum(spent.values()) == view.wall_milliseconds
        assert view.failures == 2
        lost = outcome.forecast.recorded.lost_steps
        taken = [attempt.last_step - attempt.start_step for attempt in client.attempts(job.id)]
        assert lost == sum(taken) - STEPS
        assert 0 < lost < 2 * interval
        # A step is as long as its pause, or longer on a busy machine.
        for category, steps in ((TimeCategory.PRODUCTIVE, STEPS), (TimeCategory.LOST, lost)):
            assert 0.97 * steps * STEP_SECONDS < spent[category] / 1000 < 1.5 * steps * STEP_SECONDS


def test_the_slots_of_the_cluster_sum_to_what_its_node_had(
    client: Client, outcomes: dict[int, Outcome]
) -> None:
    (node,) = client.nodes()
    view = client.cluster_goodput()
    spent = {each.category: each.slot_milliseconds for each in view.categories}
    had = SLOTS * (milliseconds(view.until) - milliseconds(node.registered_at))
    assert view.slot_milliseconds == had
    assert sum(spent.values()) == had
    assert sum(each.slot_milliseconds for day in view.days for each in day.categories) == had
    for category in (TimeCategory.PRODUCTIVE, TimeCategory.LOST, TimeCategory.STARTUP):
        of_jobs = sum(times(each.goodput)[TimeCategory(category)] for each in outcomes.values())
        assert spent[category] == RANKS * of_jobs
    (project,) = client.cluster_goodput(project="default").projects
    held = had - spent[TimeCategory.IDLE]
    assert project.slot_milliseconds == held


@pytest.mark.parametrize(("recorded", "followed"), [(OFTEN, SELDOM), (SELDOM, OFTEN)])
def test_a_forecast_that_is_followed_is_right(
    outcomes: dict[int, Outcome], recorded: int, followed: int
) -> None:
    forecast, measured = outcomes[recorded].forecast, outcomes[followed].goodput
    assert forecast.replayed is not None
    assert forecast.recorded.goodput is not None
    assert measured.goodput is not None
    assert forecast.replayed.goodput == pytest.approx(measured.goodput, abs=POINTS)
    lost = outcomes[followed].forecast.recorded.lost_steps
    assert forecast.replayed.lost_steps == pytest.approx(lost, abs=LOST_STEPS)
    assert forecast.replayed.kept_steps == STEPS
    # A forecast without a change has a far larger error.
    assert abs(forecast.recorded.lost_steps - lost) > 100
    assert abs(forecast.recorded.goodput - measured.goodput) > POINTS


def times(view: GoodputView) -> dict[TimeCategory, int]:
    """Return the milliseconds of each category."""
    return {each.category: each.milliseconds for each in view.categories}


def milliseconds(at: datetime | None) -> int:
    """Return the Unix time in milliseconds."""
    assert at is not None
    return (at - EPOCH) // timedelta(milliseconds=1)

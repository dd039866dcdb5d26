"""Pace: rates over wall time and over the steps alone, since the last look."""

from __future__ import annotations

import pytest
import torch

from trainer.metrics.timers import StepTimers


class Clock:
    """A clock that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_holds_over_the_steps_since_the_last_look() -> None:
    clock = Clock()
    pace = StepTimers(tokens_per_step=1000, devices=4, device=torch.device("cpu"), clock=clock)
    for waited in (1.0, 0.0):
        with pace.waiting_for_data():
            clock.now += waited
        with pace.step():
            clock.now += 4.0
        clock.now += 0.5  # control, heartbeats
    with pace.pausing():
        clock.now += 10.0
    assert pace.values() == pytest.approx(
        {
            "perf/tokens_per_second_per_device": 2000 / (20 * 4),
            "perf/compute_tokens_per_second_per_device": 2000 / (8 * 4),
            "perf/step_seconds": 5.0,
            "perf/data_seconds": 0.5,
            "perf/data_share": 1 / 20,
        }
    )
    clock.now += 60
    pace.restart()
    with pace.step():
        clock.now += 2
    assert pace.values()["perf/step_seconds"] == pytest.approx(2.0)


@pytest.mark.cuda
def test_on_a_gpu_the_time_of_steps_is_the_devices_own() -> None:
    device = torch.device("cuda")
    pace = StepTimers(tokens_per_step=1000, devices=1, device=device)
    torch.cuda._sleep(1)  # the first kernel waits for the device to be set up
    torch.cuda.synchronize()
    pace.restart()
    for _ in range(3):
        with pace.step():
            torch.cuda._sleep(50_000_000)  # the host goes on at once
    with pace.waiting_for_data():
        torch.cuda.synchronize()
    values = pace.values()
    ratio = (
        values["perf/compute_tokens_per_second_per_device"]
        / values["perf/tokens_per_second_per_device"]
    )
    assert values["perf/data_share"] > 0.5, "the host waited"
    assert ratio == pytest.approx(1.0, rel=0.3), "the device did not"

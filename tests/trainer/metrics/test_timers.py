"""Pace: rates over wall time and over step time only, since the last read."""

from __future__ import annotations

import pytest
import torch

from trainer.metrics.collective_waits import READ_SECONDS, DeviceWaits
from trainer.metrics.flight_record import Recorded
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
        with pace.pausing():  # the update waits for a save
            clock.now += 5
    values = pace.values()
    assert values["perf/step_seconds"] == pytest.approx(2.0)
    assert values["perf/compute_tokens_per_second_per_device"] == pytest.approx(1000 / (2 * 4))


class Device:
    """A rank on a GPU with steps of a second that end with a collective."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.recorded: list[Recorded] = []
        self.waits = DeviceWaits(lambda: self.recorded, self.clock)
        self.timers = StepTimers(
            tokens_per_step=1,
            devices=1,
            device=torch.device("cpu"),
            waits=self.waits,
            clock=self.clock,
        )

    def step(self, *, waits: float, data: float = 0.0) -> None:
        with self.timers.waiting_for_data():
            self.clock.now += data
        with self.timers.step():
            self.clock.now += 1 - waits - data
            self.recorded.append(
                Recorded(
                    group="dp",
                    ranks=(0, 1),
                    number=len(self.recorded),
                    op="all_reduce",
                    sizes="",
                    completed=True,
                    started_at=self.clock(),
                    seconds=waits,
                )
            )
            self.clock.now += waits


@pytest.mark.parametrize("line_steps", [1, 4])
def test_waits_that_are_read_less_often_than_lines_are_logged(line_steps: int) -> None:
    device = Device()
    device.step(waits=0.875)
    device.timers.values()
    device.timers.restart_comparison()
    compared = []
    for step in range(1, 49):
        device.step(waits=0.25, data=0.125)
        if step % line_steps == 0:
            if device.timers.comparable:
                compared.append(device.timers.of_rank())
            device.timers.values()
    assert len(compared) == 4
    for times in compared:
        assert times == pytest.approx((0.625, 0.125, 0.25))


def test_a_comparison_leaves_out_what_precedes_its_restart() -> None:
    device = Device()
    for _ in range(4):
        device.step(waits=0.875)
        device.timers.values()
    device.timers.restart_comparison()
    for _ in range(int(READ_SECONDS)):
        device.step(waits=0.25)
        with device.timers.pausing():
            device.clock.now += 0.5
        device.timers.values()
    assert device.timers.of_rank() == pytest.approx((0.75, 0.0, 0.25))


@pytest.mark.cuda
def test_on_a_gpu_the_time_of_steps_is_the_devices_own() -> None:
    device = torch.device("cuda")
    pace = StepTimers(tokens_per_step=1000, devices=1, device=device)
    torch.cuda._sleep(1)  # the first kernel waits for the setup of the device
    torch.cuda.synchronize()
    pace.restart()
    for _ in range(3):
        with pace.step():
            torch.cuda._sleep(50_000_000)  # the host continues immediately
    with pace.waiting_for_data():
        torch.cuda.synchronize()
    values = pace.values()
    ratio = (
        values["perf/compute_tokens_per_second_per_device"]
        / values["perf/tokens_per_second_per_device"]
    )
    assert values["perf/data_share"] > 0.5, "the host waited"
    assert ratio == pytest.approx(1.0, rel=0.3), "the device did not"

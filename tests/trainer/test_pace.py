"""Pace: means over the steps since the last look, without what lies outside of them."""

from __future__ import annotations

import pytest

from trainer.pace import Pace


class Clock:
    """A clock that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_means_over_the_steps_since_the_last_look() -> None:
    clock = Clock()
    pace = Pace(tokens_per_step=1000, devices=4, clock=clock)
    for waited in (1.0, 0.0):
        with pace.waiting_for_data():
            clock.now += waited
        clock.now += 4.5
        pace.step_done()
    assert pace.values() == {
        "perf/tokens_per_second_per_device": pytest.approx(1000 / (5 * 4)),
        "perf/step_seconds": pytest.approx(5.0),
        "perf/data_seconds": pytest.approx(0.5),
    }
    clock.now += 60  # a save
    pace.restart()
    clock.now += 2
    pace.step_done()
    assert pace.values()["perf/step_seconds"] == pytest.approx(2.0)

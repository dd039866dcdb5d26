"""A launch on a missing GPU, or one with foreign use of memory, starts no process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.worker.conftest import Attempt, Place
from tests.worker.node.hardware.fake_nvml import GIBIBYTE, FakeNvml, gpu
from trainyard.protocol.worker_messages import Hardware
from worker.node.hardware.devices import Devices

GPUS = {"count": 2, **gpu(0), **gpu(1)}
HELD = f"{os.getpid()} {GIBIBYTE}"
"""This process, which no supervisor started, and its memory."""

Start = Callable[[dict[str, object]], Attempt]


@pytest.fixture
def start(place: Place, nvml: FakeNvml) -> Start:
    """Start an attempt on both GPUs of a node with these values of NVML."""
    hardware = Hardware(
        device="cuda",
        slots=2,
        device_name="H100",
        device_memory_bytes=80 * GIBIBYTE,
        cores=2,
        memory_bytes=0,
    )
    place.local = replace(place.local, devices=Devices(hardware, ("GPU-0", "GPU-1")))

    def start_with(lines: dict[str, object]) -> Attempt:
        place.variables |= nvml.giving(lines)
        return place.start(stand_in="succeed")

    return start_with


@pytest.mark.parametrize(
    ("lines", "unusable"),
    [
        ({**GPUS, "1.lost": 15}, {"GPU-1": "the device does not answer: GPU is lost"}),
        ({"count": 1, **gpu(0)}, {"GPU-1": "the driver does not list GPU-1"}),
        (
            {**GPUS, "init_error": 18},
            dict.fromkeys(("GPU-0", "GPU-1"), "the driver does not answer"),
        ),
        (
            {**GPUS, "1.utilization": 250},
            dict.fromkeys(("GPU-0", "GPU-1"), "the driver does not answer"),
        ),
    ],
    ids=["lost", "gone", "no driver", "no value"],
)
def test_a_gpu_that_cannot_be_used_puts_the_launch_back(
    start: Start, lines: dict[str, object], unusable: dict[str, str]
) -> None:
    attempt = start(lines)
    record = attempt.exit()
    failure = record.failure
    assert failure is not None
    assert (failure.reason, failure.node) == ("launch_error", "node-1")
    assert (failure.free_retry, failure.node_at_fault) == (True, False)
    named = "; ".join(f"{uuid}: {reason}" for uuid, reason in unusable.items())
    assert failure.message == f"ranks cannot start on node-1: {named}"
    assert record.ranks == ()
    assert not list(attempt.run.ranks.glob("*"))
    assert attempt.seen.reports[-1].unusable == unusable


def test_a_gpu_whose_memory_another_program_holds_puts_the_launch_back(start: Start) -> None:
    attempt = start({**GPUS, "0.process": HELD})
    failure = attempt.exit().failure
    assert failure is not None
    assert failure.free_retry
    (uuid, reason), *others = attempt.seen.reports[-1].unusable.items()
    assert (uuid, others) == ("GPU-0", [])
    assert reason.startswith(f"process {os.getpid()}")
    assert reason.endswith(" its memory")
    assert reason in failure.message


def test_a_launch_needs_its_own_gpus_alone(place: Place, start: Start) -> None:
    place.local = replace(
        place.local, devices=replace(place.local.devices, visible=("GPU-0", "GPU-2"))
    )
    others = {**GPUS, "count": 3, **gpu(2), "1.process": HELD}
    attempt = start(others)
    assert attempt.exit().outcome == "succeeded"
    assert all(report.unusable == {} for report in attempt.seen.reports)


def test_a_library_that_fails_to_close_has_given_its_samples(start: Start) -> None:
    assert start({**GPUS, "shutdown_error": 999}).exit().outcome == "succeeded"

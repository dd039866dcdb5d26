"""The speed of this rank alone: matrix products, and training steps without a collective."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from trainer.loop.optimizer import build_optimizer
from trainer.rank_probe.probe_place import Measured, ProbePlace
from trainer.rank_probe.probed_model import SCALES, backward, build, tokens
from trainyard.protocol.rank_probe.probe_values import ProbeValue
from trainyard.spec.job import parse_job_spec

WARM_UP = 2
REPETITIONS = 15
OPTIMIZER = parse_job_spec({"name": "probe"})
"""Spec from which the optimizer is built, with the defaults of a job."""


def measure_speed(place: ProbePlace) -> Measured:
    """Yield the usual and the longest time of matrix products and of training steps, in seconds.

    On a GPU the time is wall time, and the usual time is the median. CPU ranks share cores and
    caches with their neighbours, so on a CPU the time is processor time, and the usual time is the
    shortest one.
    """
    usual = median if place.ranks.device.type == "cuda" else min
    device = place.ranks.device
    scale = SCALES[device.type]
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randn(scale.product_size, scale.product_size, generator=generator)
        .to(scale.dtype)
        .to(device)
        for _ in range(2)
    )

    def products() -> None:
        for _ in range(scale.products):
            torch.mm(left, right)

    times = _times(products, device)
    yield ProbeValue.PRODUCTS_SECONDS, usual(times)
    yield ProbeValue.PRODUCTS_SLOWEST_SECONDS, max(times)
    model, given = build(scale, device), tokens(scale, device)
    optimizer = build_optimizer(model, OPTIMIZER)

    def step() -> None:
        backward(model, *given)
        optimizer.step()

    times = _times(step, device)
    yield ProbeValue.STEP_SECONDS, usual(times)
    yield ProbeValue.STEP_SLOWEST_SECONDS, max(times)


def _times(work: Callable[[], None], device: torch.device) -> list[float]:
    """Return the seconds of each repetition."""
    on_gpu = device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    for _ in range(WARM_UP):
        work()
    times = []
    for _ in range(REPETITIONS):
        if on_gpu:
            torch.cuda.synchronize(device)
        started = clock()
        work()
        if on_gpu:
            torch.cuda.synchronize(device)
        times.append(clock() - started)
    return times

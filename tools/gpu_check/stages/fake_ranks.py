"""Checks of one rank of many, alone on the device, with a process group that sends nothing."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.one_rank import Collectives, LiveBytes, costs_of_a_step, micro_batches
from benchmarks.trainer import step_seconds
from tools.gpu_check.check import Here
from tools.gpu_check.training import EAGER, device_of
from trainer.loop.build import Assembly, assemble
from trainer.loop.step import TrainStep
from trainyard.prove.figures import Figure, at_most, equal, reported
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout

LAYOUTS = {
    8: Layout(dp_shard=8),
    64: Layout(dp_shard=32, tp=2),
    512: Layout(dp_replicate=4, dp_shard=64, tp=2),
}
PEAK = 0.15
"""Maximum relative difference between the measured peak and the count of tensors, which omits
workspaces and rounding."""
TIMED_STEPS = 5


def one_of_many(here: Here, ranks: int) -> list[Figure]:
    """Train as rank 0 of a layout; compare traffic and memory with a count on fake tensors.

    Losses are meaningless here, because the data of the other ranks are missing.
    """
    layout = LAYOUTS[ranks]
    spec = _spec(here, layout)
    (expected,) = costs_of_a_step([(spec, 0)])
    device = device_of(here.device)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Set timeout is now only supported")
        assembly = assemble(spec, layout, device)
    train = TrainStep(assembly.forward_backward, assembly.optimizer, spec)
    batches = micro_batches(spec, layout)

    def step(number: int) -> None:
        train(number, batches)

    step(1)
    peak = _peak(assembly, partial(step, 2), device)
    with Collectives() as collectives:
        step(3)
    seconds = [step_seconds(partial(step, number), device) for number in range(4, 4 + TIMED_STEPS)]
    sent = dict(sorted(collectives.sent.items()))
    dist.destroy_process_group()
    return [
        *(equal(f"sent_{kind}", sent.get(kind, 0), size) for kind, size in expected.sent.items()),
        equal("kinds_sent", ",".join(sent), ",".join(expected.sent)),
        at_most("peak_off_the_count", abs(peak / expected.peak - 1), PEAK),
        reported("peak_mib", peak / 2**20),
        reported("counted_mib", expected.peak / 2**20),
        reported("step_seconds", statistics.median(seconds)),
    ]


def _spec(here: Here, layout: Layout) -> JobSpec:
    on_cuda = here.device == "cuda"
    # Eight equal blocks instead of 32: counting takes half a minute instead of two.
    model: dict[str, Any] = {"size": "8B", "n_layers": 8} if on_cuda else {"size": "debug"}
    return parse_job_spec(
        {
            "model": model,
            "training": {
                "seq_len": 2048 if on_cuda else 128,
                "micro_batch_size": 1,
                "global_batch_size": layout.dp,
                "param_dtype": "bfloat16",
            },
            "activation_checkpoint": {"mode": "full"},
            "compile": EAGER,
            "parallelism": {
                "dp_replicate": layout.dp_replicate,
                "dp_shard": layout.dp_shard,
                "tp": layout.tp,
            },
            "resources": {"world_size": layout.world_size},
        }
    )


def _peak(assembly: Assembly, step: Callable[[], None], device: torch.device) -> int:
    """Return the peak memory of a step in bytes: the allocator's on CUDA, else that of tensors."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return torch.cuda.max_memory_allocated(device)
    states = (t for state in assembly.optimizer.state.values() for t in state.values())
    held = [*assembly.model.parameters(), *assembly.model.buffers(), *states]
    live = LiveBytes(getattr(tensor, "_local_tensor", tensor) for tensor in held)
    with live.watching():
        step()
    return live.peak

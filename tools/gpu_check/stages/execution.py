"""Checks of blocks, eager and compiled, against an eager reference in float32 on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import counters

from tools.gpu_check.check import DeviceKind, Here
from tools.gpu_check.training import (
    INPUTS,
    STEPS,
    Curve,
    Training,
    alone,
    compile_section,
    curve,
    job,
)
from trainyard.prove.figures import Figure, at_least, at_most, equal, largest_difference, reported
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout

LOSS = 3e-3
"""Maximum relative difference between bfloat16 and float32 losses, over six steps."""
GRAD_NORM = 3e-2
INPUT_MATTERS = 1e-6
"""Minimum relative effect of masks or dropout on a loss; a smaller effect shows unused input."""
LEARNED = 0.95
"""Maximum ratio of the last loss to the first."""
LESS_MEMORY = 0.8
"""Maximum ratio of memory above weights and states, with full recomputation to without."""


@dataclass(frozen=True)
class _Run(Curve):
    programs: int
    """Number of programs that the first step compiled."""
    later: int
    """Number of programs that later steps compiled."""
    breaks: int
    """Number of graph breaks."""
    bytes: int
    """Peak memory during steps minus memory between steps, in bytes; 0 on a CPU."""


def runs_as_the_reference(here: Here, *, compiled: bool, mode: str) -> list[Figure]:
    """Train on each kind of input, and compare losses, norms, programs and memory.

    Compiled blocks share one program, from the first step. Recomputation must not increase memory.
    """
    figures = []
    with alone(here.device) as device:
        on_cpu = {
            name: curve(job(here.device, **inputs), torch.device("cpu"))
            for name, inputs in INPUTS.items()
        }
        for name, inputs in INPUTS.items():
            expected = on_cpu[name]
            spec = _spec(here.device, inputs, compiled=compiled, mode=mode)
            run = _run(spec, device)
            figures += _as_expected(name, run, expected)
            if name != "plain":
                matters = largest_difference(expected.losses, on_cpu["plain"].losses)
                figures.append(at_least(f"{name}_off_plain", matters, INPUT_MATTERS))
            if compiled:
                figures.append(equal(f"{name}_programs", run.programs, 1))
            else:  # flex attention is compiled separately
                figures.append(at_most(f"{name}_programs", run.programs, 1))
            if here.device == "cuda" and mode != "none":
                whole = _run(_spec(here.device, inputs, compiled=compiled, mode="none"), device)
                share = run.bytes / whole.bytes
                bound = LESS_MEMORY if mode == "full" else 1.0
                figures.append(at_most(f"{name}_memory_of_none", share, bound))
                figures.append(reported(f"{name}_mib", run.bytes / 2**20))
    return figures


def _spec(device: DeviceKind, inputs: dict[str, Any], *, compiled: bool, mode: str) -> JobSpec:
    return job(
        device,
        **inputs,
        training={"param_dtype": "bfloat16"},
        activation_checkpoint={"mode": mode},
        compile=compile_section(device) if compiled else {},
    )


def _run(spec: JobSpec, device: torch.device) -> _Run:
    torch._dynamo.reset()
    counters.clear()
    training = Training(spec, Layout(), device)
    results = [training.step(1)]
    programs = counters["stats"]["unique_graphs"]
    before = 0
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    results += [training.step(step) for step in range(2, STEPS + 1)]
    losses, norms = zip(*results, strict=True)
    return _Run(
        torch.stack(losses).tolist(),
        torch.stack(norms).float().tolist(),
        programs=programs,
        later=counters["stats"]["unique_graphs"] - programs,
        breaks=sum(counters["graph_break"].values()),
        bytes=torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else 0,
    )


def _as_expected(name: str, run: _Run, expected: Curve) -> list[Figure]:
    return [
        at_most(f"{name}_loss", largest_difference(run.losses, expected.losses), LOSS),
        at_most(
            f"{name}_grad_norm",
            largest_difference(run.grad_norms, expected.grad_norms),
            GRAD_NORM,
        ),
        at_most(f"{name}_last_loss_of_first", run.losses[-1] / run.losses[0], LEARNED),
        at_most(f"{name}_graph_breaks", run.breaks, 0),
        at_most(f"{name}_compiled_later", run.later, 0),
    ]

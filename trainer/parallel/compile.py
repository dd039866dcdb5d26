"""torch.compile for each block; blocks of the same class share one compiled program."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch._inductor.config
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from trainer.distributed import COMPILING_SECONDS, collective_timeout
from trainer.errors import LaunchError
from trainer.parallel.mesh import set_timeouts
from trainyard.spec.job import JobSpec
from trainyard.spec.sections.parallelism import CompileSection

COMPILERS = {"cuda": ("CC", ("gcc", "clang")), "cpu": ("CXX", ("g++",))}
"""For each device, the environment variable that names the compiler of its kernels, and the default
compilers. Triton's launchers are in C, and inductor's CPU kernels are in C++.
"""


def compile_blocks(
    blocks: Iterable[nn.Module],
    section: CompileSection,
    *,
    device_type: str = "cpu",
    recipe: str = "none",
    whole: bool = True,
) -> None:
    """Compile each block's `forward` in place; module names and hooks do not change.

    Args:
        blocks: transformer blocks.
        section: section with `enabled` and the backend.
        device_type: device of the blocks.
        recipe: `quantization.recipe` of the job.
        whole: whether a block must compile to one graph. A graph break would lose the speed-up
            without an error, but a data-dependent branch needs a graph break.

    Raises:
        LaunchError: the machine has no compiler for the kernels.
    """
    if section.enabled is not True:
        return
    if section.backend == "inductor":
        _require_compiler(device_type)
    if recipe.startswith("float8_rowwise"):
        # A fused kernel computes the scale from float32 intermediates, eager code from values
        # rounded to bfloat16. Without this option, the scale does not match the cast tensor
        # (pytorch #150859).
        torch._inductor.config.emulate_precision_casts = True
    for block in blocks:
        block.forward = torch.compile(block.forward, backend=section.backend, fullgraph=whole)


def _require_compiler(device_type: str) -> None:
    """Raise LaunchError now for a missing compiler; torch would fail in the first step."""
    variable, usual = COMPILERS[device_type]
    named = os.environ.get(variable)
    wanted = (named,) if named else usual
    if not any(shutil.which(program) for program in wanted):
        raise LaunchError(
            f"compile.enabled needs a compiler on the node, which has no {' or '.join(wanted)}: "
            "install one there, or set compile.enabled = false"
        )


@contextmanager
def waiting_for_compilers(
    spec: JobSpec, mesh: DeviceMesh, cpu_group: dist.ProcessGroup
) -> Iterator[None]:
    """Raise the timeout of collectives to 0.9 of the supervisor's limit while ranks compile.

    Does nothing if the job does not compile. A barrier ends the block. Without the barrier, a rank
    could post collectives of the next step, with the shorter timeout, while another rank still
    compiles. On CUDA these would time out, because the timeout of a collective includes its wait
    for earlier collectives.
    """
    if spec.compile.enabled is not True:
        yield
        return
    hang = spec.guard.hang_seconds
    set_timeouts(mesh, collective_timeout(max(hang, COMPILING_SECONDS)))
    yield
    dist.barrier(group=cpu_group)
    set_timeouts(mesh, collective_timeout(hang))

"""torch.compile for each block: all blocks of a model share one compiled program."""

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
"""The environment variable for the compiler of a device's kernels, and the default compilers.
Triton builds its launchers in C, inductor its CPU kernels in C++."""


def compile_blocks(
    blocks: Iterable[nn.Module],
    section: CompileSection,
    *,
    device_type: str = "cpu",
    recipe: str = "none",
    whole: bool = True,
) -> None:
    """Compile the `forward` of each block, in place; names and hooks of the modules do not change.

    Args:
        blocks: the transformer blocks.
        section: `enabled` and the backend.
        device_type: device of the blocks.
        recipe: `quantization.recipe` of the job.
        whole: whether one graph must contain a block. A graph break would lose the speed-up without
            an error; a data-dependent branch needs one.

    Raises:
        LaunchError: the machine has no compiler for the kernels.
    """
    if section.enabled is not True:
        return
    if section.backend == "inductor":
        _require_compiler(device_type)
    if recipe.startswith("float8_rowwise"):
        # A fused kernel computes the scale from float32 intermediates, eager code from values
        # rounded to bfloat16: without this option the scale does not match the cast tensor
        # (pytorch #150859).
        torch._inductor.config.emulate_precision_casts = True
    for block in blocks:
        block.forward = torch.compile(block.forward, backend=section.backend, fullgraph=whole)


def _require_compiler(device_type: str) -> None:
    """Raise LaunchError now for a missing compiler, which torch reports only in the first step."""
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
    """Raise the timeout of collectives while ranks compile, to the supervisor's limit.

    Does nothing if the job does not compile. A barrier ends the block: on CUDA the timeout of a
    collective includes its wait for earlier ones, so no rank may post collectives of the next step,
    under the shorter timeout, while another rank still compiles.
    """
    if spec.compile.enabled is not True:
        yield
        return
    hang = spec.guard.hang_seconds
    set_timeouts(mesh, collective_timeout(max(hang, COMPILING_SECONDS)))
    yield
    dist.barrier(group=cpu_group)
    set_timeouts(mesh, collective_timeout(hang))

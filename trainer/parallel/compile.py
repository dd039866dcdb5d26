"""torch.compile, block by block: one program serves all blocks of a model."""

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
"""The variable that names the compiler of a device's kernels, and what is taken without it: Triton
builds its launchers in C, inductor its CPU kernels in C++."""


def compile_blocks(
    blocks: Iterable[nn.Module],
    section: CompileSection,
    *,
    device_type: str = "cpu",
    recipe: str = "none",
) -> None:
    """Compile the `forward` of each block, in place; names and hooks of the modules stay.

    Graphs must be whole: a break in a block would silently cost what compiling is to win.

    Args:
        blocks: the transformer blocks.
        section: whether, and by which backend.
        device_type: where the blocks compute.
        recipe: that of `quantization`.

    Raises:
        LaunchError: the machine has no compiler for the kernels.
    """
    if section.enabled is not True:
        return
    if section.backend == "inductor":
        _require_compiler(device_type)
    if recipe.startswith("float8_rowwise"):
        # A fused kernel would scale by numbers that it has not rounded to bfloat16, as eager code
        # does, and the scale would not be that of the tensor that is cast (pytorch #150859).
        torch._inductor.config.emulate_precision_casts = True
    for block in blocks:
        block.forward = torch.compile(block.forward, backend=section.backend, fullgraph=True)


def _require_compiler(device_type: str) -> None:
    """Name at the start what torch would miss in the first step."""
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
    """Have collectives in this block wait for ranks that compile, as long as the supervisor does.

    It ends when all ranks are through, if the job compiles at all: on CUDA a collective counts the
    time that it waits for those before it, so those of the next step must not be posted earlier.
    """
    if spec.compile.enabled is not True:
        yield
        return
    hang = spec.guard.hang_seconds
    set_timeouts(mesh, collective_timeout(max(hang, COMPILING_SECONDS)))
    yield
    dist.barrier(group=cpu_group)
    set_timeouts(mesh, collective_timeout(hang))

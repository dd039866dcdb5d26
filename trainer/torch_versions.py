"""All that differs between the supported versions of torch: 2.11, the lowest, to 2.15.

Everything else in the trainer is written once for all of them. `docs/trainer.md` has the versions
that were tested, and `make test-torch TORCH=2.11.0` tests one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._functorch import config as compiler
from torch.distributed import _functional_collectives
from torch.torch_version import TorchVersion

from trainer.errors import LaunchError

SPLITS_BACKWARD = TorchVersion(torch.__version__) >= "2.12"
"""Whether a pipeline can compute the gradients of weights apart from those of inputs. 2.11 cannot
where a graph holds an `autograd.Function`, and the loss of the head is one."""

all_gather_single_autograd: Any = getattr(
    _functional_collectives,
    "all_gather_single_autograd",
    None,  # 2.11 has it under its former name, which 2.15 calls deprecated
) or getattr(_functional_collectives, "all_gather_tensor_autograd")  # noqa: B009
"""`all_gather_single_autograd(tensor, gather_dim, group)`: a gather with a backward."""


def refuse_split_backward(schedule: str) -> None:
    """Refuse a pipeline schedule that this version of torch cannot run.

    Raises:
        LaunchError: naming the field, the version and the schedules that are legal with it.
    """
    if schedule in ("InterleavedZeroBubble", "ZBVZeroBubble") and not SPLITS_BACKWARD:
        raise LaunchError(
            f"parallelism.pp_schedule={schedule!r} needs torch 2.12 or newer, but this is "
            f"{torch.__version__}; legal here: GPipe, 1F1B, Interleaved1F1B"
        )


def count_no_bytes_for_device_meshes() -> None:
    """Have the compiler's memory budget accept graphs that hold a device mesh.

    2.11 has no such switch: there a mesh reaches no graph.
    """
    if hasattr(compiler, "unsafe_treat_script_objects_as_zero_size"):
        compiler.unsafe_treat_script_objects_as_zero_size = True


def release_buffers(received: Iterable[Any]) -> None:
    """Give back the memory of what a pipeline stage has received; a shape stays in its place.

    `received` are descriptors of torch.distributed.pipelining. Up to 2.14 they hold a buffer for
    each micro-batch of a run and each direction all the time; 2.15 allocates them as here. A
    descriptor of an input of the whole model has no buffer, or none yet.
    """
    for info in received:
        buffer = getattr(info, "buffer", None)
        if buffer is not None and not buffer.is_meta:
            info.buffer = torch.empty_like(buffer, device="meta")


def allocate_buffers(received: Iterable[Any], device: torch.device) -> None:
    """Give memory to what `release_buffers` took it from, before it is received."""
    for info in received:
        shape = getattr(info, "buffer", None)
        if shape is not None and shape.is_meta:
            info.buffer = torch.empty_like(shape, device=device)

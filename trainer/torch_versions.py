"""All code that depends on the version of torch, for the versions from 2.11 to 2.15.

`docs/trainer.md` lists the tested versions; `make test-torch TORCH=2.11.0` tests one version.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._functorch import config as compiler
from torch.distributed import _functional_collectives
from torch.torch_version import TorchVersion

from trainer.errors import LaunchError

SPLITS_BACKWARD = TorchVersion(torch.__version__) >= "2.12"
"""Whether a pipeline can split backward into gradients of inputs and gradients of weights. torch
2.11 fails on graphs with an `autograd.Function`, such as the loss of the head.
"""

all_gather_single_autograd: Any = getattr(
    _functional_collectives,
    "all_gather_single_autograd",
    None,  # 2.11 has only the second name, which 2.15 deprecates
) or getattr(_functional_collectives, "all_gather_tensor_autograd")  # noqa: B009
"""`all_gather_single_autograd(tensor, gather_dim, group)`: a differentiable all-gather."""


def refuse_split_backward(schedule: str) -> None:
    """Reject a pipeline schedule that this version of torch cannot run.

    Raises:
        LaunchError: the schedule is unsupported; the message names the field, the version and the
            legal schedules.
    """
    if schedule in ("InterleavedZeroBubble", "ZBVZeroBubble") and not SPLITS_BACKWARD:
        raise LaunchError(
            f"parallelism.pp_schedule={schedule!r} needs torch 2.12 or newer, but this is "
            f"{torch.__version__}; legal here: GPipe, 1F1B, Interleaved1F1B"
        )


def count_no_bytes_for_device_meshes() -> None:
    """Let the compiler's memory budget accept graphs that contain a device mesh.

    torch 2.11 lacks this option, but does not need it, because its graphs contain no mesh.
    """
    if hasattr(compiler, "unsafe_treat_script_objects_as_zero_size"):
        compiler.unsafe_treat_script_objects_as_zero_size = True


def release_buffers(received: Iterable[Any]) -> None:
    """Replace a pipeline stage's receive buffers by meta tensors of the same shape.

    `received` are descriptors of torch.distributed.pipelining. Up to torch 2.14, they always hold
    the buffers of all micro-batches and directions. torch 2.15 allocates buffers on demand, as this
    module does. The descriptor of a model input has no buffer.
    """
    for info in received:
        buffer = getattr(info, "buffer", None)
        if buffer is not None and not buffer.is_meta:
            info.buffer = torch.empty_like(buffer, device="meta")


def allocate_buffers(received: Iterable[Any], device: torch.device) -> None:
    """Allocate the buffers that `release_buffers` replaced; call this before a receive."""
    for info in received:
        shape = getattr(info, "buffer", None)
        if shape is not None and shape.is_meta:
            info.buffer = torch.empty_like(shape, device=device)


LOUD_ON_IMPORT = ("torchao", "torch.utils._pytree")
"""Loggers that print warnings on import, about GPU kernels that a CPU cannot load and about types
that are registered twice.
"""


@contextmanager
def quiet_torchao() -> Iterator[None]:
    """Suppress torchao's warnings during its import; without a GPU, also skip its kernels.

    torchao loads its kernels during the first import.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("TORCHAO_FORCE_SKIP_LOADING_SO_FILES", "1")
    loggers = {logger: logger.level for logger in map(logging.getLogger, LOUD_ON_IMPORT)}
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in loggers.items():
            logger.setLevel(level)

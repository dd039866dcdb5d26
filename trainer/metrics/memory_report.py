"""Memory use by part at an out-of-memory error, and snapshots of the CUDA allocator."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.errors import LaunchError, OutOfMemoryError, is_out_of_memory
from trainyard.run.failures import REMEDIES, MemoryUse

logger = logging.getLogger("trainer")

HISTORY = "MEMORY_HISTORY"
"""Variable in the job's `env` that sets the number of allocations and frees in a CUDA snapshot."""
HISTORY_ENTRIES = 100_000
"""Number of entries in a requested snapshot if the variable is absent."""
GIB = 2**30
REMEDY_OF_PART = {
    "weights": "shard them over more slots (parallelism.dp_shard), or optimizer.cpu_offload",
    "gradients": "shard them over more slots (parallelism.dp_shard), or optimizer.cpu_offload",
    "optimizer states": (
        "shard them over more slots (parallelism.dp_shard), optimizer.state_dtype = 'bfloat16', "
        "or optimizer.cpu_offload"
    ),
    "the rest": (
        "it is activations above all: a smaller training.micro_batch_size, or "
        "activation_checkpoint.mode = 'full'"
    ),
}


def start_history(device: torch.device) -> None:
    """Record the allocator's history, which costs time, if the job's `env` enables it.

    Raises:
        LaunchError: the variable is not a number.
    """
    entries = os.environ.get(HISTORY, "0")
    if not entries.isdecimal():
        raise LaunchError(
            f"env.{HISTORY}={entries!r} is no number of entries, such as {HISTORY_ENTRIES}"
        )
    if device.type == "cuda" and int(entries):
        torch.cuda.memory._record_memory_history(max_entries=int(entries))


def history_runs() -> bool:
    """Return whether the job always records the history."""
    return int(os.environ.get(HISTORY, "0")) > 0


def dump_snapshot(folder: Path, name: str) -> Path:
    """Write the CUDA allocator's state and recorded history; return the path of the file."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.pickle"
    torch.cuda.memory._dump_snapshot(str(path))
    return path


@contextmanager
def explaining_memory(
    model: nn.Module, optimizer: Optimizer, *, device: torch.device, snapshots: Path, rank: int
) -> Iterator[None]:
    """Add the memory use by part to an out-of-memory error in the block.

    Raises:
        OutOfMemoryError: memory ran out; it replaces the errors of torch and Python.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        use = memory_use(model, optimizer, device)
        raise OutOfMemoryError(
            f"{_first_line(error)} {_in_words(use)}",
            memory=use,
            remedy=_remedy(use),
            path=_snapshot(device, snapshots, rank),
        ) from error


def memory_use(model: nn.Module, optimizer: Optimizer, device: torch.device) -> MemoryUse:
    """Return this rank's memory use on its device, by part, in bytes."""
    parameters = list(model.parameters())
    states = (value for state in optimizer.state.values() for value in state.values())
    weights = _bytes_on(device, parameters)
    gradients = _bytes_on(device, (p.grad for p in parameters))
    moments = _bytes_on(device, states)
    allocated, reserved, total = _held(device)
    return MemoryUse(
        device=device.type,
        total_bytes=total,
        reserved_bytes=reserved,
        allocated_bytes=allocated,
        weights_bytes=weights,
        gradients_bytes=gradients,
        optimizer_bytes=moments,
        rest_bytes=max(allocated - weights - gradients - moments, 0),
    )


def _held(device: torch.device) -> tuple[int, int, int]:
    """Return allocated, reserved and total bytes; on a CPU, allocated is the resident set size."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        return torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device), total
    page = os.sysconf("SC_PAGE_SIZE")
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * page
    return resident, resident, os.sysconf("SC_PHYS_PAGES") * page


def _bytes_on(device: torch.device, values: Iterable[object]) -> int:
    """Return the bytes of tensors on a device; for a DTensor, the bytes of its local shard."""
    local = (v._local_tensor if isinstance(v, DTensor) else v for v in values)
    return sum(t.nbytes for t in local if isinstance(t, torch.Tensor) and t.device == device)


def _parts(use: MemoryUse) -> dict[str, int]:
    return {
        "weights": use.weights_bytes,
        "gradients": use.gradients_bytes,
        "optimizer states": use.optimizer_bytes,
        "the rest": use.rest_bytes,
    }


def _in_words(use: MemoryUse) -> str:
    listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in _parts(use).items())
    return f"In use: {use.allocated_bytes / GIB:.2f} of {use.total_bytes / GIB:.2f} GiB ({listed})."


def _remedy(use: MemoryUse) -> str:
    """Return the usual remedy, then a remedy that reduces the largest part of the memory use."""
    parts = _parts(use)
    most = max(parts, key=lambda name: parts[name])
    usual = REMEDIES[OutOfMemoryError.reason].text
    return f"{usual} Largest: {most}; {REMEDY_OF_PART[most]}."


def _first_line(error: BaseException) -> str:
    text = (str(error) or type(error).__name__).splitlines()[0].strip()
    return text if text.endswith(".") else f"{text}."


def _snapshot(device: torch.device, folder: Path, rank: int) -> str | None:
    if device.type != "cuda":
        return None
    try:
        return str(dump_snapshot(folder, f"out-of-memory.rank-{rank}"))
    except (OSError, RuntimeError):
        logger.exception("no snapshot of the memory could be written")
        return None

"""What the node is made of: GPUs as `nvidia-smi` names them, cores and memory; without torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainyard.protocol.worker_messages import Hardware

LEAST_CPU_SLOTS = 4
"""A node without GPUs offers at least so many, so that every layout can be tried on a laptop."""
DEVICE_FILES = Path("/dev")
NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=index,uuid,name,memory.total",
    "--format=csv,noheader,nounits",
)


@dataclass(frozen=True)
class Gpu:
    """One GPU of the node."""

    index: int
    uuid: str
    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Devices:
    """What the node offers, and what `CUDA_VISIBLE_DEVICES` must say for each slot."""

    hardware: Hardware
    visible: tuple[str, ...]
    """For each slot of a GPU node what makes CUDA see that GPU; empty on a CPU node."""

    @property
    def threads_per_slot(self) -> int:
        """CPU threads that a rank may use without taking those of another slot."""
        return max(1, self.hardware.cores // self.hardware.slots)


def find_devices(
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    slots: int | None = None,
    gpus: list[Gpu] | None = None,
) -> Devices:
    """Return what this node offers.

    Args:
        device: kind of slots to offer.
        slots: how many, in place of all.
        gpus: the GPUs, in place of those that `nvidia-smi` names.

    Raises:
        ValueError: `device="cuda"` without a GPU, more GPU slots asked for than there are, or GPUs
            that `nvidia-smi` does not list.
    """
    found = [] if device == "cpu" else (find_gpus() if gpus is None else gpus)
    if device == "cuda" and not found:
        raise ValueError("device='cuda', but nvidia-smi names no GPU here; use 'cpu' or 'auto'")
    if found and slots is not None and slots > len(found):
        raise ValueError(f"slots={slots}, but this node has {len(found)} GPUs")
    offered = found[:slots]
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    count = len(offered) or slots or max(LEAST_CPU_SLOTS, cores)
    hardware = Hardware(
        device="cuda" if offered else "cpu",
        slots=count,
        device_name=offered[0].name if offered else _cpu_name(),
        device_memory_bytes=min((gpu.memory_bytes for gpu in offered), default=memory // count),
        cores=cores,
        memory_bytes=memory,
    )
    return Devices(hardware, visible=tuple(gpu.uuid for gpu in offered))


def find_gpus(*, devices: Path | None = None) -> list[Gpu]:
    """Return the GPUs of this machine that the worker may use, by index; none without any.

    Raises:
        ValueError: the machine has GPUs, and `nvidia-smi` does not list them.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return []
    there = sorted(path.name for path in (devices or DEVICE_FILES).glob("nvidia[0-9]*"))
    try:
        listed = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=60, check=True)
        found = parse_gpus(listed.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        if there:
            raise ValueError(_unlisted(there, error)) from error
        return []
    if there and not found:
        raise ValueError(_unlisted(there, "it lists none"))
    return _allowed(found, visible)


def _unlisted(there: Sequence[str], why: object) -> str:
    """Return the error for a node whose GPUs are hidden: it would train on its CPUs unnoticed."""
    said = getattr(why, "stdout", None) or getattr(why, "stderr", None) or ""
    words = " ".join(str(said).split())
    return (
        f"this machine has GPUs (/dev/{there[0]}), but nvidia-smi fails: {why}"
        + (f": {words[:500]}" if words else "")
        + "; mend the driver, or set TRAINYARD_DEVICE=cpu to offer CPU slots"
    )


def parse_gpus(listing: str) -> list[Gpu]:
    """Read the lines of `NVIDIA_SMI`: index, UUID, name, memory in MiB."""
    gpus = []
    for line in filter(str.strip, listing.splitlines()):
        index, uuid, name, memory = (field.strip() for field in line.split(","))
        mebibytes = int(memory) if memory.isdigit() else 0  # "[N/A]" where memory is shared
        gpus.append(Gpu(int(index), uuid, name, mebibytes * 1024 * 1024))
    return gpus


def _allowed(gpus: list[Gpu], visible: str | None) -> list[Gpu]:
    """Leave out what the worker's own `CUDA_VISIBLE_DEVICES` hides, which nvidia-smi ignores."""
    if visible is None:
        return gpus
    chosen = [word.strip() for word in visible.split(",") if word.strip()]
    return [
        gpu
        for word in chosen
        for gpu in gpus
        if word == str(gpu.index) or (not word.isdigit() and gpu.uuid.startswith(word))
    ]


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return os.uname().machine

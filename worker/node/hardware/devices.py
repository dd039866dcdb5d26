"""Slots of the node: its accelerators or, without any, its cores. This module needs no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainyard.protocol.worker_messages import Hardware
from worker.node.cgroup import cgroup_limits
from worker.node.hardware.accelerators import Accelerators, visible_devices

LEAST_CPU_SLOTS = 4
"""Minimum default number of slots without GPUs, so that a laptop can try every layout."""


@dataclass(frozen=True)
class Devices:
    """The slots of the node, and the value of `CUDA_VISIBLE_DEVICES` for each."""

    hardware: Hardware
    visible: tuple[str, ...]
    """CUDA's name for the GPU of each slot of a GPU node; empty on a CPU node."""

    @property
    def threads_per_slot(self) -> int:
        """Number of CPU threads for each rank: the cores are divided evenly among the slots."""
        return max(1, self.hardware.cores // self.hardware.slots)


def find_devices(
    accelerators: Accelerators | None,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    slots: int | None = None,
) -> Devices:
    """Return the slots of this node.

    Args:
        accelerators: GPUs of the machine; None if it has none.
        device: kind of slots to offer.
        slots: number of slots to offer; by default, all slots.

    Raises:
        ValueError: `device="cuda"` without a GPU, `CUDA_VISIBLE_DEVICES` names none of the GPUs, or
            the machine has fewer GPU slots than `slots`.
    """
    use_gpus = accelerators is not None and device != "cpu"
    listed = accelerators.devices() if accelerators is not None and use_gpus else ()
    found = visible_devices(listed, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if device == "cuda" and not found:
        raise ValueError("device='cuda', but NVML lists no GPU here; use 'cpu' or 'auto'")
    if found and slots is not None and slots > len(found):
        raise ValueError(f"slots={slots}, but this node has {len(found)} GPUs")
    offered = found[:slots]
    limits = cgroup_limits()
    cores = min(len(os.sched_getaffinity(0)), limits.cores or 1 << 20)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory = min(physical, limits.memory_bytes or physical)
    count = len(offered) or slots or max(LEAST_CPU_SLOTS, cores)
    hardware = Hardware(
        device="cuda" if offered else "cpu",
        slots=count,
        device_name=offered[0].name if offered else _cpu_name(),
        device_memory_bytes=min((gpu.memory_bytes for gpu in offered), default=memory // count),
        cores=cores,
        memory_bytes=memory,
        accelerators=offered,
        driver=accelerators.driver if accelerators is not None and offered else None,
    )
    return Devices(hardware, visible=tuple(gpu.uuid for gpu in offered))


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return os.uname().machine

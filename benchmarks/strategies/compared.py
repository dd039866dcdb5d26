"""The strategies that `benchmarks.strategies` compares, for the devices present."""

from __future__ import annotations

import os

import torch

from trainyard.prove.strategies import ComparedStrategy, strategies
from trainyard.training.known_devices import Slot


def strategies_here() -> list[ComparedStrategy]:
    """Return the strategies for this machine; the first one is the reference."""
    if torch.cuda.is_available():
        return strategies(torch.cuda.device_count(), device="cuda")
    return strategies(8, device="cpu")  # ranks share the cores


def slots_here() -> list[Slot]:
    """Return the slots of this machine, for the planner."""
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return [Slot("cuda", properties.name, properties.total_memory)]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return [Slot("cpu", "CPU", memory)]

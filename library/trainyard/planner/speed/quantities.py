"""Quantities that make up a step time, and the nodes that they depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Quantity = Literal[
    "float32_flops",
    "bfloat16_flops",
    "attention_flops",
    "moved_bytes",
    "updated_bytes",
    "node_bytes",
    "network_bytes",
    "messages",
    "block_passes",
    "rounds",
    "steps",
]
"""Products by type, attention, bytes of activations, updates, and traffic within and between nodes,
collectives, passes of blocks that the host launches, micro-batches, and the step itself."""


@dataclass(frozen=True)
class NodeKind:
    """Properties of the nodes that step times depend on."""

    device: Literal["cpu", "cuda"]
    """Kind of slot."""
    name: str
    """Name of the GPU or CPU."""
    slots: int
    """Slots of a node; an axis with more ranks communicates over the network."""
    cores: int
    """CPU cores of a node, which CPU ranks share."""

    def crowding(self, ranks: int) -> float:
        """Return the number of CPU ranks per core; 1 on GPUs."""
        if self.device != "cpu":
            return 1.0
        return max(1.0, min(ranks, self.slots) / self.cores)


@dataclass(frozen=True)
class StepWork:
    """Work of the busiest rank in a step."""

    quantities: dict[Quantity, float]
    """Amount of each quantity; waits in a pipeline and shared cores increase it."""
    hidden: dict[Quantity, float]
    """Part of the traffic that a device with its own streams sends while it computes."""
    device: Literal["cpu", "cuda"]
    """Kind of slot."""

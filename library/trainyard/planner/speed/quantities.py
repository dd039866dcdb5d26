"""Quantities of work that add up to a step time, and the nodes on which they depend."""

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
"""Quantities of work: FLOPs of matrix products by dtype and of attention; bytes of activations, of
updates, and of traffic within and between nodes; numbers of collectives, of block passes launched
by the host, of micro-batches, and of steps."""


@dataclass(frozen=True)
class NodeKind:
    """Properties of nodes on which the step time depends."""

    device: Literal["cpu", "cuda"]
    """Kind of slot."""
    name: str
    """Name of the GPU or CPU."""
    slots: int
    """Number of slots per node; an axis that spans more ranks communicates over the network."""
    cores: int
    """Number of CPU cores per node, which CPU ranks share."""

    def crowding(self, ranks: int) -> float:
        """Return the number of CPU ranks per core, at least 1; 1 on GPUs."""
        if self.device != "cpu":
            return 1.0
        return max(1.0, min(ranks, self.slots) / self.cores)


@dataclass(frozen=True)
class StepWork:
    """Work of the busiest rank in one step."""

    quantities: dict[Quantity, float]
    """Amount of each quantity; waits in a pipeline and shared cores increase the amounts."""
    hidden: dict[Quantity, float]
    """Amount of traffic that a device with separate streams sends while it computes."""
    device: Literal["cpu", "cuda"]
    """Kind of slot."""

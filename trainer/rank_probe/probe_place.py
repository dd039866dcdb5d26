"""The place of this rank in the probe: its peers, its folders, and sizes of the work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from trainer.distributed import Ranks
from trainyard.protocol.rank_probe.probe_values import ProbeValue

Measured = Iterator[tuple[ProbeValue, float]]
"""Values in rising order; each one is logged before the next is measured."""


@dataclass(frozen=True)
class ProbePlace:
    """What a measurement of one rank needs."""

    ranks: Ranks
    """This rank and its device."""
    group: dist.ProcessGroup
    """Group of all ranks over gloo, of this measurement alone: a failed collective leaves a group
    unusable."""
    local_rank: int
    """Rank on the node; the ranks of a node are contiguous."""
    node_size: int
    """Number of ranks on the node."""
    storage: str | None
    """Path of the storage root of the checkpoints on this node, or its URL; None outside a job."""
    data: Path | None
    """Folder in the node's data folder; None outside a job."""
    disk_bytes: int
    """Size of the file that the disk measurement writes."""

    @property
    def node_ranks(self) -> range:
        """Global ranks on this node."""
        first = self.ranks.rank - self.local_rank
        return range(first, first + self.node_size)

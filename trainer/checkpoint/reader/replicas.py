"""What one replica of the weights has read goes to the others: storage is read once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainer.checkpoint.collective_errors import on_every_rank
from trainer.checkpoint.transfer import LARGEST_PIECE
from trainer.parallel.mesh import ranks_of_replicas
from trainyard.spec.layout import Layout


def in_first_replica(rank: int, layout: Layout) -> bool:
    """Return whether a rank belongs to the first replica, which reads for all."""
    return ranks_of_replicas(rank, layout)[0] == rank


def broadcast(tensors: Mapping[str, Tensor], layout: Layout, everybody: dist.ProcessGroup) -> None:
    """Give this rank's shards to the ranks that hold the same ones, or take them from the first.

    All ranks call it together, with tensors of the same names, and what fails on one is raised on
    every rank. They travel between the hosts, in pieces: beside them no more than one piece is in
    memory.
    """
    ranks = ranks_of_replicas(dist.get_rank(), layout)
    # It stays until the process ends: torch gives the name of a group that is gone to the next one,
    # which then looks for its ranks where nobody listens any more.
    group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    assert group is not None
    on_every_rank(everybody, lambda: _send_or_receive(tensors, group))


def _send_or_receive(tensors: Mapping[str, Tensor], group: dist.ProcessGroup) -> None:
    for name in sorted(tensors):
        tensor = tensors[name]
        shard = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
        flat = shard.reshape(-1)
        for piece in flat.split(max(1, LARGEST_PIECE // shard.itemsize)):
            on_host = piece.cpu()  # of a CPU it is the piece itself
            dist.broadcast(on_host.view(torch.uint8), group_src=0, group=group)
            piece.copy_(on_host)
        if not shard.is_contiguous():
            shard.copy_(flat.view(shard.shape))

"""A gather on rank 0 that notes its sender while it waits.

gloo's flight recorder omits point-to-point operations. Without the note, a rank that waits here
would seem to wait for no other rank.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.metrics.flight_record import Recorded, noted

_gathers: dict[str, int] = {}  # number of calls on each group


def gather_on_rank_0(mine_N: Tensor, group: dist.ProcessGroup) -> Tensor | None:
    """Return the tensors of a CPU group's ranks, [world, N], on rank 0; None on other ranks.

    The tensors are sent along a binomial tree, between the same pairs of ranks as in a broadcast
    from rank 0. `dist.gather` would open a socket from rank 0 to every other rank.

    Args:
        mine_N: tensor of this rank; length and dtype must be equal on all ranks.
        group: group of the ranks.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    _gathers[group.group_name] = _gathers.get(group.group_name, 0) + 1
    rows_RN = mine_N[None]
    distance = 1
    while distance < world_size:
        if rank & distance:
            dist.send(rows_RN, group_dst=rank - distance, group=group)
            return None
        if (other := rank + distance) < world_size:
            theirs_RN = mine_N.new_empty(min(distance, world_size - other), len(mine_N))
            with noted(_receive(theirs_RN, other, group)):
                dist.recv(theirs_RN, group_src=other, group=group)
            rows_RN = torch.cat([rows_RN, theirs_RN])
        distance *= 2
    return rows_RN


def _receive(theirs_RN: Tensor, sender: int, group: dist.ProcessGroup) -> Recorded:
    """Return the record of a receive from a rank of the group."""
    return Recorded(
        group=f"{group.group_desc}/{group.group_name}",
        ranks=tuple(dist.get_global_rank(group, one) for one in (dist.get_rank(group), sender)),
        number=_gathers[group.group_name],
        op="recv",
        sizes=str([list(theirs_RN.shape)]),
        completed=False,
        started_at=time.time(),
        seconds=None,
    )

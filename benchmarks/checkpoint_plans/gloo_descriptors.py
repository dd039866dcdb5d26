"""Descriptors that gloo holds on the fullest rank, measured at 8 to 64 ranks and fitted.

Each rank is a process. It makes the groups that a trainer has on both GPUs and CPUs: the default
one, one for counters and decisions, and one for saves. On each group it runs the trainer's
collectives there; on the default one also those of training on CPUs. As in a trainer, gloo connects
two ranks at their first message.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from trainer.distributed import on_every_rank, on_rank_0
from trainer.metrics.gather import gather_on_rank_0

RANKS = (8, 16, 32, 64)
STAGES = 8
"""Pipeline stages; the first rank of each sends its tensors' names to all."""


@dataclass(frozen=True)
class DescriptorLaw:
    """Growth of the descriptors of the fullest rank."""

    points: tuple[tuple[int, int], ...]
    """Ranks, and measured descriptors."""

    def at(self, ranks: int) -> float:
        """Return the descriptors at a number of ranks, by the law that fits better.

        Sockets grow with the logarithm of the ranks along trees and rings, and linearly if one rank
        receives from all others.
        """
        measured = np.array(self.points, dtype=float)
        guesses = []
        for scale in (np.log2, np.asarray):
            line, error, *_ = np.polyfit(scale(measured[:, 0]), measured[:, 1], 1, full=True)
            guesses.append((float(error.sum()), float(np.polyval(line, scale(float(ranks))))))
        return min(guesses)[1]


def descriptor_law(context: BaseContext, ranks: tuple[int, ...] = RANKS) -> DescriptorLaw:
    """Measure the fullest rank at each number of ranks."""
    points = []
    for world_size in ranks:
        with (
            tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder,
            ProcessPoolExecutor(world_size, mp_context=context) as pool,
        ):
            meeting = str(Path(folder) / "meeting")
            counts = [
                pool.submit(rank_descriptors, rank, world_size, meeting)
                for rank in range(world_size)
            ]
            points.append((world_size, max(count.result() for count in counts)))
    return DescriptorLaw(tuple(points))


def rank_descriptors(rank: int, world_size: int, meeting: str) -> int:
    """Return the descriptors that this rank opened for its groups; alone in its process."""
    torch.set_num_threads(1)
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1"
    before = _open_descriptors()
    store = dist.FileStore(meeting, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    world = dist.group.WORLD
    own, saves = dist.new_group(backend="gloo"), dist.new_group(backend="gloo")
    assert world is not None
    assert own is not None
    assert saves is not None
    warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames the collectives of FSDP
    _training(world)
    gather_on_rank_0(torch.zeros(8), own)
    for group in (own, saves):
        _decisions(group)
    for first in range(0, world_size, max(1, world_size // STAGES)):
        dist.broadcast_object_list([rank], group=saves, group_src=first)
    dist.barrier()
    opened = _open_descriptors() - before
    dist.barrier()  # no rank closes its sockets before all have counted
    dist.destroy_process_group()
    return opened


def _training(group: dist.ProcessGroup) -> None:
    shard = torch.zeros(4)
    whole = torch.zeros(4 * dist.get_world_size(group))
    dist.all_gather_into_tensor(whole, shard, group=group)
    dist.reduce_scatter_tensor(shard, whole, group=group)
    dist.all_reduce(shard, group=group)
    dist.broadcast(shard, group_src=0, group=group)


def _decisions(group: dist.ProcessGroup) -> None:
    dist.barrier(group=group)
    dist.all_reduce(torch.zeros(1), op=dist.ReduceOp.MAX, group=group)
    on_rank_0(group, lambda: None)
    on_every_rank(group, lambda: None)


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))

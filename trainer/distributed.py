"""The ranks of a launch: who this process is, its device, and the groups it speaks through."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist

from trainer.errors import LaunchError

SHORTEST_TIMEOUT_SECONDS = 60.0
SAVING_TIMEOUT_SECONDS = 3600.0
"""How long a rank waits for the others while files are read and written."""


@dataclass(frozen=True)
class Ranks:
    """This process among the ranks of the attempt."""

    rank: int
    """Global rank."""
    world_size: int
    """Ranks in all."""
    device: torch.device
    """Where this rank computes."""
    cpu_group: dist.ProcessGroup
    """All ranks, over gloo: counters, digests, checkpoints."""
    decision_group: dist.ProcessGroup
    """All ranks, over gloo, for nothing but what rank 0 decides between steps: a broadcast there is
    under way while the other group is in use."""

    @property
    def leads(self) -> bool:
        """Whether this is global rank 0."""
        return self.rank == 0


@contextmanager
def joined(device: Literal["auto", "cpu", "cuda"], *, hang_seconds: float) -> Iterator[Ranks]:
    """Join the process group that torchrun's environment names, and leave it when all are done.

    Without that environment the process is the only rank. After an error the group is left as it
    is: ending it would wait for ranks that may never come.

    Args:
        device: kind of slot; `auto` takes a GPU where there is one.
        hang_seconds: silence of a peer after which a collective fails.

    Raises:
        LaunchError: the kind of slot is not here.
    """
    local = _local_device(device)
    backend = "cpu:gloo,cuda:nccl" if local.type == "cuda" else "gloo"
    timeout = timedelta(seconds=max(hang_seconds, SHORTEST_TIMEOUT_SECONDS))
    saving_timeout = timedelta(seconds=max(hang_seconds, SAVING_TIMEOUT_SECONDS))
    device_id = local if local.type == "cuda" else None
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=timeout, device_id=device_id)
    else:
        store = dist.HashStore()
        dist.init_process_group(
            backend, store=store, rank=0, world_size=1, timeout=timeout, device_id=device_id
        )
    yield Ranks(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        device=local,
        cpu_group=dist.new_group(backend="gloo", timeout=saving_timeout),
        decision_group=dist.new_group(backend="gloo", timeout=saving_timeout),
    )
    dist.barrier()  # nobody closes its connections while another rank still needs them
    dist.destroy_process_group()


def _local_device(kind: Literal["auto", "cpu", "cuda"]) -> torch.device:
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    index, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if index >= count:
        raise LaunchError(
            f"resources.device={kind!r}: local rank {index} has no GPU, {count} are visible here"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)

"""A short all-reduce between the nodes of an attempt, before the attempt loads anything."""

from __future__ import annotations

import logging
import time

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from trainer.distributed import Ranks
from trainer.errors import SilentRankError
from trainer.run import Run

logger = logging.getLogger("trainer")

CHECK_SECONDS = 60.0
"""Time in which all ranks must arrive; they have met at the rendezvous already."""
FIRST_SECONDS = 5.0
"""Time by which rank 0 fails before the others, whose failures may follow from its end."""
CHECKED_BYTES = 16 * 2**20
"""Bytes of each rank: a quarter of a second at 1 Gbit/s."""
POLL_SECONDS = 0.0001
ARRIVED = "network_check/{}"
"""Key of a rank in the store. torch's monitored barrier, which names ranks too, is not bounded by
its timeout while gloo connects lazily."""
REMEDY = (
    "Let the nodes reach each other at all ports (TRAINYARD_ADDRESS, firewalls, the interface in "
    "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME), or give nodes of another network another label "
    "fabric; then resume."
)


def check_network(run: Run, ranks: Ranks) -> float | None:
    """Return the bus bandwidth of an all-reduce between nodes, in bytes a second.

    None where the attempt has no such check. The bandwidth is that of NCCL's tests:
    2 (n - 1) / n x bytes / seconds, the least of all ranks.

    Raises:
        SilentRankError: a rank did not arrive, or the all-reduce did not end; nodes are named.
    """
    if not run.attempt.check_network:
        return None
    store = distributed_c10d._get_default_store()  # of the rendezvous, which all ranks have reached
    store.set(ARRIVED.format(ranks.rank), "1")
    values = torch.ones(CHECKED_BYTES // 4, device=ranks.device)
    try:
        _reduce(values[:1], run, ranks)  # opens the connections
        started = time.perf_counter()
        _reduce(values, run, ranks)
    except RuntimeError as error:
        if not ranks.leads:
            time.sleep(FIRST_SECONDS)  # the failure that reaches the server first is shown
        message = f"an all-reduce between {_nodes(run)} failed on rank {ranks.rank}: {error}"
        raise SilentRankError(message, remedy=REMEDY) from error
    seconds = torch.tensor([time.perf_counter() - started], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX, group=ranks.cpu_group)
    speed = 2 * (ranks.world_size - 1) / ranks.world_size * CHECKED_BYTES / seconds.item()
    if ranks.leads:
        shown = f"{1000 * seconds.item():.1f} ms, {speed / 1e9:.2f} GB/s"
        logger.info("all-reduce of %d MiB between %s: %s", CHECKED_BYTES >> 20, _nodes(run), shown)
    return speed


def _reduce(values: torch.Tensor, run: Run, ranks: Ranks) -> None:
    """Add `values` up over all ranks; a collective on a device would wait far longer by itself."""
    limit = CHECK_SECONDS if ranks.leads else CHECK_SECONDS + FIRST_SECONDS
    deadline = time.monotonic() + limit
    work = dist.all_reduce(values, async_op=True)
    assert work is not None
    while not work.is_completed():
        if time.monotonic() > deadline:
            raise SilentRankError(_silent(run, ranks, limit), remedy=REMEDY)
        time.sleep(POLL_SECONDS)
    work.wait()


def _silent(run: Run, ranks: Ranks, seconds: float) -> str:
    """Return which ranks did not arrive within the time; where all did, the network failed."""
    store = distributed_c10d._get_default_store()
    missing = [r for r in range(ranks.world_size) if not store.check([ARRIVED.format(r)])]
    if missing:
        where = ", ".join(sorted({str(run.attempt.node_of(rank)) for rank in missing}))
        return f"ranks {missing} on {where} did not arrive at the first collective in {seconds:g} s"
    return (
        f"an all-reduce between {_nodes(run)} did not end on rank {ranks.rank} in {seconds:g} s, "
        "although every rank had arrived"
    )


def _nodes(run: Run) -> str:
    return ", ".join(node.node for node in run.attempt.allocation)

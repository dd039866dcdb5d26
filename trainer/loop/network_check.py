"""A short all-reduce between the nodes of an attempt, before the attempt loads any data."""

from __future__ import annotations

import logging
import time

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from trainer.distributed import STARTING_SECONDS, Ranks, collective_timeout
from trainer.errors import SilentRankError
from trainer.run import TrainerRun

logger = logging.getLogger("trainer")

CHECK_SECONDS = 60.0
"""Time limit of each all-reduce after all ranks have arrived, in seconds."""
FIRST_SECONDS = 5.0
"""Delay, in seconds, of a failure on ranks other than 0. Users see only the first failure; a
failure on another rank may be a mere consequence of rank 0's exit.
"""
CHECKED_BYTES = 16 * 2**20
"""Number of bytes per rank; at 1 Gbit/s their all-reduce takes at most 0.27 s."""
POLL_SECONDS = 0.0001
ARRIVAL_POLL_SECONDS = 0.05
ARRIVED = "network_check/{}"
"""Key that a rank sets in the store on arrival. torch's monitored barrier could also name the
absent ranks, but its timeout has no effect while gloo connects lazily.
"""
ALL_ARRIVED = "network_check/all"
"""Key set by rank 0, so that other ranks wait for one key instead of one key per rank."""
REMEDY = (
    "Let the nodes reach each other at all ports (TRAINYARD_ADDRESS, firewalls, the interface in "
    "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME), or give nodes of another network another label "
    "fabric; then resume."
)


def check_network(run: TrainerRun, ranks: Ranks) -> float | None:
    """Return the bus bandwidth of an all-reduce between nodes, in bytes per second.

    Returns None if the attempt needs no check. As in NCCL's tests, the bandwidth is 2 (n - 1) / n x
    bytes / seconds. The result is the minimum over all ranks.

    Raises:
        SilentRankError: a rank did not arrive, or the all-reduce failed or did not end; the message
            names the nodes.
    """
    if not run.attempt.check_network:
        return None
    _await_ranks(run, ranks)
    values = torch.ones(CHECKED_BYTES // 4, device=ranks.device)
    try:
        _reduce(values[:1], run, ranks)  # opens the connections between the ranks
        started = time.perf_counter()
        _reduce(values, run, ranks)
        seconds = torch.tensor([time.perf_counter() - started], dtype=torch.float64)
        # NCCL also completes a failed collective, and its `wait` then raises no error.
        if (total := values[-1].item()) != ranks.world_size:
            raise RuntimeError(f"a sum over {ranks.world_size} ranks is {total:g}")
        # This reduction also opens the connections of the CPU group, whose own timeout is an hour.
        _reduce(seconds, run, ranks, dist.ReduceOp.MAX, ranks.cpu_group)
    except RuntimeError as error:
        if not ranks.leads:
            time.sleep(FIRST_SECONDS)  # users see the failure that reaches the server first
        message = f"an all-reduce between {_nodes(run)} failed on rank {ranks.rank}: {error}"
        raise SilentRankError(message, remedy=REMEDY) from error
    speed = 2 * (ranks.world_size - 1) / ranks.world_size * CHECKED_BYTES / seconds.item()
    if ranks.leads:
        shown = f"{1000 * seconds.item():.1f} ms, {speed / 1e9:.2f} GB/s"
        logger.info("all-reduce of %d MiB between %s: %s", CHECKED_BYTES >> 20, _nodes(run), shown)
    return speed


def _await_ranks(run: TrainerRun, ranks: Ranks) -> None:
    """Wait until every rank has arrived; give up shortly before the supervisor's hang limit.

    The wait is long because ranks import torch after the rendezvous, and storage may be slow on
    some nodes.
    """
    limit = collective_timeout(max(STARTING_SECONDS, run.spec.guard.hang_seconds)).total_seconds()
    deadline = time.monotonic() + limit + (0 if ranks.leads else FIRST_SECONDS)
    store = distributed_c10d._get_default_store()  # the store that the rendezvous created
    store.set(ARRIVED.format(ranks.rank), "1")
    every = [ARRIVED.format(rank) for rank in range(ranks.world_size)]
    while not store.check(every if ranks.leads else [ALL_ARRIVED]):
        if time.monotonic() > deadline and (absent := _absent(ranks)):
            where = ", ".join(sorted({str(run.attempt.node_of(rank)) for rank in absent}))
            message = f"ranks {absent} on {where} did not arrive at the first collective"
            raise SilentRankError(f"{message} in {limit:g} s", remedy=REMEDY)
        time.sleep(ARRIVAL_POLL_SECONDS)
    if ranks.leads:
        store.set(ALL_ARRIVED, "1")


def _reduce(
    values: torch.Tensor,
    run: TrainerRun,
    ranks: Ranks,
    operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Reduce `values` over all ranks, with a shorter timeout than the process groups have.

    Raises:
        SilentRankError: the reduction did not end.
        RuntimeError: the reduction failed on gloo.
    """
    limit = CHECK_SECONDS if ranks.leads else CHECK_SECONDS + FIRST_SECONDS
    deadline = time.monotonic() + limit
    work = dist.all_reduce(values, operation, group=group, async_op=True)
    assert work is not None
    while not work.is_completed():
        if time.monotonic() > deadline:
            message = (
                f"an all-reduce between {_nodes(run)} did not end on rank {ranks.rank} in "
                f"{limit:g} s, although every rank had arrived"
            )
            raise SilentRankError(message, remedy=REMEDY)
        time.sleep(POLL_SECONDS)
    work.wait()


def _absent(ranks: Ranks) -> list[int]:
    store = distributed_c10d._get_default_store()
    return [r for r in range(ranks.world_size) if not store.check([ARRIVED.format(r)])]


def _nodes(run: TrainerRun) -> str:
    return ", ".join(node.node for node in run.attempt.allocation)

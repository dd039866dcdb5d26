"""Time in collectives: an early rank waits, a late one does not."""

from __future__ import annotations

import threading
import time
from statistics import median
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives
from torch.distributed._functional_collectives import all_reduce, wait_tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh

from tests.trainer.ranks import run_ranks
from trainer.metrics.collective_waits import measured_waits

LATE = 0.4
TRIES = 3
"""Their median counts: a busy machine delays either rank in some of them."""


def _waits(kind: str) -> float:
    return median([_waits_once(kind) for _ in range(TRIES)])


def _waits_once(kind: str) -> float:
    mesh = init_device_mesh("cpu", (2,))
    value = torch.ones(4)
    dist.all_reduce(value)  # connects
    with measured_waits(torch.device("cpu")) as waits:
        if dist.get_rank() == 1:
            time.sleep(LATE)
        _collective(kind, value, mesh)
        seconds = waits.seconds
    former = waits.seconds
    dist.all_reduce(value)
    assert waits.seconds == former, "after the block nothing is counted"
    return seconds


def _collective(kind: str, value: torch.Tensor, mesh: Any) -> None:
    match kind:
        case "sync":
            dist.all_reduce(value)
        case "async":
            work = dist.all_reduce(value, async_op=True)
            assert work is not None
            work.wait()
        case "p2p":
            other = 1 - dist.get_rank()
            act = dist.isend if dist.get_rank() else dist.irecv
            for work in dist.batch_isend_irecv([dist.P2POp(act, value, other)]):
                work.wait()
        case "functional":
            wait_tensor(all_reduce(value, "sum", mesh))
        case _:
            DTensor.from_local(value, mesh, [Shard(0)]).redistribute(
                mesh, [Replicate()]
            ).to_local().sum()


@pytest.mark.parametrize("kind", ["sync", "async", "p2p", "functional", "dtensor"])
def test_the_early_rank_waits(kind: str) -> None:
    early, late = run_ranks(2, _waits, kind)
    assert early == pytest.approx(LATE, abs=0.2)
    assert late < 0.2


def _waits_in_a_thread() -> float:
    with measured_waits(torch.device("cpu")) as waits:
        if dist.get_rank() == 1:
            time.sleep(LATE)
        saving = threading.Thread(target=dist.all_reduce, args=(torch.ones(1),))
        saving.start()
        saving.join()
        return waits.seconds


def test_a_background_save_does_not_count() -> None:
    assert run_ranks(2, _waits_in_a_thread) == [0.0, 0.0]


def _compiled_waits() -> tuple[float, float]:
    mesh = init_device_mesh("cpu", (2,))

    def increased(value: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = _functional_collectives.wait_tensor(all_reduce(value, "sum", mesh))
        return total + 1

    # An error at a graph break; the backend runs the graph unchanged.
    compiled = torch.compile(increased, backend="eager", fullgraph=True)
    with measured_waits(torch.device("cpu")) as waits:
        return compiled(torch.ones(4)).sum().item(), waits.seconds


def test_a_compiled_wait_breaks_no_graph_and_is_not_counted() -> None:
    assert run_ranks(2, _compiled_waits) == [(12.0, 0.0)] * 2

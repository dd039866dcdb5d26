"""The gather on rank 0: all tensors in order, and the sender for which a rank waits."""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tests.trainer.ranks import run_ranks
from trainer.metrics.flight_record import Recorded, pending, receiving, recorded
from trainer.metrics.gather import gather_on_rank_0
from trainyard.run.records import PendingCollective, RankRange


def _gathered(length: int) -> torch.Tensor | None:
    group = dist.group.WORLD
    assert group is not None
    mine_N = 10 * dist.get_rank() + torch.arange(length)
    return gather_on_rank_0(mine_N, group)


@pytest.mark.parametrize(("world_size", "length"), [(1, 2), (2, 2), (5, 3), (6, 2), (3, 0)])
def test_rank_0_receives_the_tensors_of_all_ranks_in_their_order(
    world_size: int, length: int
) -> None:
    first, *others = run_ranks(world_size, _gathered, length)
    expected = [[10 * rank + column for column in range(length)] for rank in range(world_size)]
    assert first.tolist() == expected
    assert others == [None] * (world_size - 1)


def _waiting_for_rank_3() -> tuple[list[PendingCollective], list[Recorded]]:
    """Return the receive in which a rank waits until rank 3 sends, and the receives afterwards."""
    group = dist.group.WORLD
    assert group is not None
    gather_on_rank_0(torch.zeros(5), group)
    found: list[PendingCollective] = []
    store = distributed_c10d._get_default_store()

    def note() -> None:
        while (waiting := pending(recorded(nccl=False), receiving())) is None:
            time.sleep(0.01)
        found.append(waiting)
        store.set(f"noted by {dist.get_rank()}", "1")

    if dist.get_rank() in (0, 2):
        threading.Thread(target=note, daemon=True).start()
    if dist.get_rank() == 3:
        store.wait(["noted by 0", "noted by 2"])
    gather_on_rank_0(torch.zeros(5), group)
    return found, receiving()


def test_a_rank_that_waits_notes_its_sender() -> None:
    first, second, third, fourth = run_ranks(4, _waiting_for_rank_3)
    (of_rank_0,), (of_rank_2,) = first[0], third[0]
    assert of_rank_2 == PendingCollective(
        group=of_rank_0.group,
        ranks=(RankRange(first=2, last=3),),
        number=2,
        op="recv",
        sizes="[[1, 5]]",
    )
    assert of_rank_0.ranks in ((RankRange(first=0, last=1),), (RankRange(first=0, last=2, step=2),))
    assert (second[0], fourth[0]) == ([], [])
    assert [after for _, after in (first, second, third, fourth)] == [[]] * 4

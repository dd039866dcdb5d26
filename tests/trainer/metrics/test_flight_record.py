"""torch's flight recorder as JSON: the collective that a rank waits in, and for how long."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tests.trainer.ranks import run_ranks
from trainer.metrics.collective_waits import READ_SECONDS, DeviceWaits
from trainer.metrics.flight_record import Recorded, parse, pending, rank_ranges, recorded
from trainyard.run.records import MAX_RANK_RANGES, RankRange

ENTRY: dict[str, Any] = {
    "process_group": ["3", "mesh_tp"],
    "collective_seq_id": 7,
    "profiling_name": "nccl:all_reduce",
    "input_sizes": [[4, 2]],
    "state": "started",
    "retired": False,
    "time_created_ns": 1_700_000_000_000_000_000,
    "is_p2p": False,
}


def _waiting_for_rank_1() -> Any:
    """Return the records of rank 0 before and during a wait in its third all-reduce."""
    for _ in range(2):
        dist.all_reduce(torch.ones(3))
    # A thread of torch marks a collective as completed shortly after its caller continues.
    deadline = time.monotonic() + 10
    while (before := pending(recorded(nccl=False))) and time.monotonic() < deadline:
        time.sleep(0.01)
    found: list[Any] = []
    store, is_noted = distributed_c10d._get_default_store(), "noted"

    def note() -> None:
        while (waiting := pending(recorded(nccl=False))) is None:
            time.sleep(0.01)
        found.append(waiting)
        store.set(is_noted, "1")

    if dist.get_rank() == 0:
        threading.Thread(target=note, daemon=True).start()
    else:
        store.wait([is_noted])
    dist.all_reduce(torch.ones(2, 5))
    return before, found


def test_the_collective_in_which_a_rank_waits_on_gloo() -> None:
    (before, found), (other, _) = run_ranks(2, _waiting_for_rank_1)
    assert before is None
    assert other is None
    (waiting,) = found
    world = (RankRange(first=0, last=1),)
    assert (waiting.op, waiting.number, waiting.ranks) == ("all_reduce", 3, world)
    assert "2, 5" in waiting.sizes


def test_the_form_of_nccl() -> None:
    text = json.dumps(
        {
            "pg_config": {"3": {"name": "3", "desc": "mesh_tp", "ranks": "[4, 5]"}},
            "entries": [
                ENTRY | {"collective_seq_id": 6, "state": "completed", "duration_ms": 250.0},
                ENTRY,
                ENTRY | {"is_p2p": True},
            ],
        }
    )
    ended, waiting = parse(text)
    assert (ended.completed, ended.seconds) == (True, 0.25)
    assert waiting == Recorded(
        group="mesh_tp/3",
        ranks=(4, 5),
        number=7,
        op="all_reduce",
        sizes="[[4, 2]]",
        completed=False,
        started_at=1.7e9,
        seconds=None,
    )


def test_the_oldest_collective_of_both_recorders_is_the_one_in_which_a_rank_waits() -> None:
    def call(op: str, started_at: float, *, completed: bool = False) -> Recorded:
        return Recorded("g", (0, 1), 1, op, "", completed, started_at, None)

    nccl = [call("all_reduce", 1.0, completed=True), call("all_gather", 4.0), call("send", 2.5)]
    for older, op in ((3.0, "barrier"), (5.0, "all_gather")):
        gloo = [call("broadcast", 2.0, completed=True), call("barrier", older)]
        for rings in ((nccl, gloo), (gloo, nccl)):
            waiting = pending(*rings)
            assert waiting is not None
            assert waiting.op == op
    assert pending([], gloo[:1]) is None


@pytest.mark.parametrize(
    ("ranks", "ranges"),
    [
        ((), []),
        ((3,), [(3, 3, 1)]),
        (range(4096), [(0, 4095, 1)]),
        (range(5, 4096, 8), [(5, 4093, 8)]),
        ((8, 0, 9, 1, 16, 17), [(0, 1, 1), (8, 9, 1), (16, 17, 1)]),
        ([number**2 for number in range(4 * MAX_RANK_RANGES)], []),
    ],
)
def test_ranks_as_ranges(ranks: Sequence[int], ranges: list[tuple[int, int, int]]) -> None:
    found = rank_ranges(ranks)
    assert [(one.first, one.last, one.step) for one in found] == ranges


def test_the_waits_of_a_gpu_are_read_later() -> None:
    clock = [1000.0]
    ring: list[Recorded] = []

    def ended(at: float, seconds: float) -> Recorded:
        return Recorded("g", (0, 1), 1, "all_reduce", "", True, at, seconds)

    waits = DeviceWaits(lambda: ring, lambda: clock[0])
    due = [waits.due]
    clock[0] += READ_SECONDS
    assert [*due, waits.due] == [False, True]
    ring[:] = [ended(999.0, 5.0), ended(1001.0, 2.0), ended(1005.0, 1.0)]
    waits.read()
    assert waits.seconds == 3.0
    # The ring has lost the first half: it counts like the other one.
    clock[0] += READ_SECONDS
    ring[:] = [ended(1015.0, 1.0), ended(1018.0, 1.0)]
    waits.read()
    assert waits.seconds == 3.0 + 4.0

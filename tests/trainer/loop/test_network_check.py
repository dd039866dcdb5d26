"""Ranks that do not answer at the start are named before anything is loaded."""

from __future__ import annotations

import itertools
import os
import signal
import time
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tests.trainer.ranks import run_ranks, started_ranks
from tests.trainer.runs import SmallJob
from trainer.distributed import STARTING_SECONDS, joined
from trainer.errors import SilentRankError
from trainer.loop import network_check
from trainer.loop.network_check import ARRIVED, check_network
from trainer.metrics.run_writer import failure_of
from trainer.process import leave
from trainer.run import TrainerRun, open_run
from trainyard.protocol.attempt import AttemptSpec, NodeAllocation
from trainyard.protocol.record_parser import parse_record
from trainyard.run.directory import Phase
from trainyard.run.failures import Failure
from trainyard.run.record_base import to_json
from trainyard.spec.layout import Layout
from worker.supervisor.hang import PHASE_SECONDS

SIZES = (1, 2)
RANKS = sum(SIZES)


def opened(folder: str) -> TrainerRun:
    return open_run(Path(folder), world_size=RANKS, roots={})


def check(folder: str) -> float | None:
    with joined("cpu", hang_seconds=60) as ranks:
        return check_network(opened(folder), ranks)


def reduces_after_arrival(folder: str) -> bool:
    """Check while rank 1 arrives last; return whether it saw a collective before its arrival."""
    reduce, began = network_check._reduce, "reduces"

    def noted(*given: Any) -> None:
        distributed_c10d._get_default_store().set(began, "1")
        reduce(*given)

    with joined("cpu", hang_seconds=60) as ranks, patch.object(network_check, "_reduce", noted):
        store = distributed_c10d._get_default_store()
        early = False
        if ranks.rank == 1:
            store.wait([ARRIVED.format(0), ARRIVED.format(2)])
            time.sleep(1)
            early = store.check([began])
        assert check_network(opened(folder), ranks) is not None
    return early


class Failed:
    """A failed collective of NCCL: it is completed, and `wait` raises nothing."""

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None:
        """Return immediately."""


def fail_on_devices(folder: str) -> str:
    network_check.FIRST_SECONDS = 0.0
    with (
        joined("cpu", hang_seconds=60) as ranks,
        patch.object(dist, "all_reduce", return_value=Failed()),
        pytest.raises(SilentRankError) as caught,
    ):
        check_network(opened(folder), ranks)
    return str(caught.value)


def fail(folder: str, reduces: int | None) -> NoReturn:
    """Check while rank 1 joins some all-reduces or does not arrive; end like ranks of an attempt.

    Rank 2 fails only after the end of the test.
    """
    rank = int(os.environ["RANK"])
    network_check.CHECK_SECONDS, network_check.FIRST_SECONDS = 5.0, 60.0
    with joined("cpu", hang_seconds=60) as ranks:
        if rank == 1:
            if reduces is None:
                signal.pause()  # until the test ends
            reduce, calls = network_check._reduce, itertools.count()

            def some(*given: Any) -> None:
                if next(calls) == reduces:
                    signal.pause()
                reduce(*given)

            patch.object(network_check, "_reduce", some).start()
        if rank == 0 and reduces is None:
            distributed_c10d._get_default_store().wait([ARRIVED.format(2)])
            at_once = timedelta(seconds=1)
            patch.object(network_check, "collective_timeout", return_value=at_once).start()
        try:
            check_network(opened(folder), ranks)
        except SilentRankError as error:
            failure = failure_of(error, rank=rank, step=0)
            (Path(folder) / "failure.json").write_text(to_json(failure))
        leave(1)


def prepare(folder: Path, *, sizes: tuple[int, ...] = SIZES, check_network: bool = True) -> Path:
    """Return the run directory of an attempt on two nodes."""
    job = SmallJob(folder).changed(folder, training={"steps": 2}, lr_schedule={"warmup_steps": 0})
    run = job.prepare(1, Layout(dp_shard=sum(sizes)))
    path = run / "attempt.json"
    allocation = tuple(
        NodeAllocation(node=f"gpu-{index}", node_rank=index, slots=tuple(range(size)))
        for index, size in enumerate(sizes)
    )
    described = AttemptSpec.model_validate_json(path.read_text())
    more = {"allocation": allocation, "check_network": check_network}
    path.write_text(described.model_copy(update=more).model_dump_json())
    return run


def failure_of_rank_0(folder: Path, *, reduces: int | None) -> Failure:
    """Return the failure of rank 0, which waits for rank 1."""
    run = prepare(folder)
    with started_ranks(RANKS, fail, str(run), reduces, initialize=False) as started:
        assert wait([started.processes[0].sentinel], timeout=90), "rank 0 waits for ever"
    return parse_record(Failure, (run / "failure.json").read_bytes())


def test_nodes_that_reach_each_other_have_a_bandwidth(tmp_path: Path) -> None:
    speeds = set(run_ranks(RANKS, check, str(prepare(tmp_path)), initialize=False))
    assert len(speeds) == 1, "the slowest rank counts, on every rank"
    assert 0 < speeds.pop() < 1e12


def test_an_attempt_without_a_check_has_none(tmp_path: Path) -> None:
    run = prepare(tmp_path, check_network=False)
    assert run_ranks(RANKS, check, str(run), initialize=False) == [None] * RANKS


def test_ranks_that_do_not_arrive_are_named(tmp_path: Path) -> None:
    failure = failure_of_rank_0(tmp_path, reduces=None)
    assert failure.reason == "hang"
    assert "ranks [1] on gpu-1 did not arrive at the first collective in 1 s" in failure.message
    assert failure.remedy.text == network_check.REMEDY


def test_a_slow_start_of_a_rank_is_no_part_of_the_all_reduce(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    early = run_ranks(RANKS, reduces_after_arrival, str(run), initialize=False)
    assert early == [False] * RANKS
    assert PHASE_SECONDS[Phase.STARTING] == STARTING_SECONDS


@pytest.mark.parametrize("reduces", [0, 2], ids=["default group", "CPU group"])
def test_an_all_reduce_that_does_not_end_is_bounded(tmp_path: Path, reduces: int) -> None:
    failure = failure_of_rank_0(tmp_path, reduces=reduces)
    assert failure.reason == "hang"
    assert "between gpu-0, gpu-1 did not end on rank 0 in 5 s" in failure.message


def test_a_collective_that_failed_without_an_exception_is_a_failure(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    for rank, message in enumerate(run_ranks(RANKS, fail_on_devices, str(run), initialize=False)):
        between = f"an all-reduce between gpu-0, gpu-1 failed on rank {rank}"
        assert message == f"{between}: a sum over 3 ranks is 1"


def test_the_bandwidth_is_a_metric_of_the_first_step(tmp_path: Path) -> None:
    run, layout = prepare(tmp_path, sizes=(1, 1)), Layout(dp_shard=2)
    attempt = SmallJob(tmp_path).launch_prepared(run, layout)
    measured = attempt.values("network/all_reduce_gigabytes_per_second")
    assert measured.keys() == {1}
    assert measured[1] > 0

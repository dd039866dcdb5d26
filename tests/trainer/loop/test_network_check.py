"""Ranks that do not answer at the start are named before anything is loaded."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import wait
from pathlib import Path
from typing import NoReturn

from torch.distributed import distributed_c10d

from tests.trainer.ranks import run_ranks, started_ranks
from tests.trainer.runs import SmallJob
from trainer.distributed import joined
from trainer.errors import SilentRankError
from trainer.loop import network_check
from trainer.loop.network_check import ARRIVED, check_network
from trainer.metrics.run_writer import failure_of
from trainer.process import leave
from trainer.run import Run, open_run
from trainyard.protocol.attempt import AttemptSpec, NodeAllocation
from trainyard.protocol.record_parser import parse_record
from trainyard.run.failures import Failure
from trainyard.run.record_base import to_json
from trainyard.spec.layout import Layout

SIZES = (1, 2)
RANKS = sum(SIZES)


def opened(folder: str) -> Run:
    return open_run(Path(folder), world_size=RANKS, roots={})


def check(folder: str) -> float | None:
    with joined("cpu", hang_seconds=60) as ranks:
        return check_network(opened(folder), ranks)


def fail(folder: str, arrives: bool) -> NoReturn:
    """Check while rank 1 never comes to the all-reduce; end as ranks of an attempt do."""
    rank = int(os.environ["RANK"])
    # Rank 2 is slower to fail than the test lasts.
    network_check.CHECK_SECONDS, network_check.FIRST_SECONDS = 1.0, 60.0
    with joined("cpu", hang_seconds=60) as ranks:
        store = distributed_c10d._get_default_store()
        if rank == 1:
            if arrives:
                store.set(ARRIVED.format(rank), "1")
            signal.pause()  # until the test ends
        if rank == 0:
            store.wait([ARRIVED.format(other) for other in ((1, 2) if arrives else (2,))])
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


def failure_of_rank_0(folder: Path, *, arrives: bool) -> Failure:
    """Return the failure of rank 0, which waits for rank 1."""
    run = prepare(folder)
    with started_ranks(RANKS, fail, str(run), arrives, initialize=False) as started:
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
    failure = failure_of_rank_0(tmp_path, arrives=False)
    assert failure.reason == "hang"
    assert "ranks [1] on gpu-1 did not arrive at the first collective in 1 s" in failure.message
    assert failure.remedy.text == network_check.REMEDY


def test_an_all_reduce_that_does_not_end_is_bounded(tmp_path: Path) -> None:
    failure = failure_of_rank_0(tmp_path, arrives=True)
    assert failure.reason == "hang"
    assert "between gpu-0, gpu-1 did not end on rank 0 in 1 s" in failure.message


def test_the_bandwidth_is_a_metric_of_the_first_step(tmp_path: Path) -> None:
    run, layout = prepare(tmp_path, sizes=(1, 1)), Layout(dp_shard=2)
    attempt = SmallJob(tmp_path).launch_prepared(run, layout)
    measured = attempt.values("network/all_reduce_gigabytes_per_second")
    assert measured.keys() == {1}
    assert measured[1] > 0

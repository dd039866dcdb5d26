"""What torchrun is told: its command line, and the environment of the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.protocol.attempt import AttemptSpec, NodeAllocation
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from worker.launchers.torchrun import Share, rank_environment, torchrun_command
from worker.node.node_store import LaunchRecord, WorkerRun

LAUNCH = LaunchRecord(
    attempt_id="a",
    node="node-1",
    node_rank=1,
    rendezvous="10.0.0.5:29500",
    report_seconds=0.5,
    data_dir="/data",
    environment={"OMP_NUM_THREADS": "8", "CUDA_VISIBLE_DEVICES": "GPU-b"},
)


def test_torchrun_never_restarts_a_rank_itself() -> None:
    run = WorkerRun(Path("/data/runs/j/1"))
    alone = torchrun_command(run, LAUNCH, Share(nodes=1, node_rank=0, local_ranks=2), ["train"])
    of_two = torchrun_command(run, LAUNCH, Share(nodes=2, node_rank=1, local_ranks=2), ["train"])
    assert "--max-restarts=0" in alone
    assert "--max-restarts=0" in of_two
    assert {"--standalone", "--local-addr=127.0.0.1"} <= {*alone}
    assert {"--node-rank=1", "--master-addr=10.0.0.5", "--master-port=29500"} <= {*of_two}


def test_a_job_sees_the_gpus_of_its_slots_whatever_it_or_the_node_says() -> None:
    # Refused at submission; a spec that was stored before must not take them either.
    spec = JobSpec.model_construct(env={"CUDA_VISIBLE_DEVICES": "0,1,2,3", "NCCL_DEBUG": "INFO"})
    found = rank_environment(spec, LAUNCH, inherited={"CUDA_VISIBLE_DEVICES": "5", "HOME": "/h"})
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert (found["NCCL_DEBUG"], found["HOME"]) == ("INFO", "/h")


def test_threads_are_those_of_the_job_else_of_the_node_else_a_fair_share() -> None:
    def threads(job: dict[str, str], node: dict[str, str]) -> str:
        spec = JobSpec(env=job)
        return rank_environment(spec, LAUNCH, inherited=node)["OMP_NUM_THREADS"]

    name = "OMP_NUM_THREADS"
    assert threads({name: "2"}, {name: "3"}) == "2"
    assert threads({}, {name: "3"}) == "3"
    assert threads({}, {}) == "8"


def test_what_belongs_to_the_worker_is_not_passed_on() -> None:
    worker = {"TRAINYARD_JOIN_TOKEN": "t", "CELERY_X": "x", "REDIS_URL": "redis://:p@h"}
    assert not {*worker} & {*rank_environment(JobSpec(), LAUNCH, inherited=worker)}


def test_every_node_holds_as_many_ranks() -> None:
    def attempt(*slots: int) -> AttemptSpec:
        nodes = [
            NodeAllocation(node=f"n{rank}", node_rank=rank, slots=tuple(range(count)))
            for rank, count in enumerate(slots)
        ]
        return AttemptSpec(job_id="j", layout=Layout(dp_shard=4), allocation=tuple(nodes))

    assert Share.of(attempt(2, 2), LAUNCH).ranks == range(2, 4)
    with pytest.raises(ValueError, match="as many slots on each node"):
        Share.of(attempt(3, 1), LAUNCH)

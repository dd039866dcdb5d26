"""The command line of torchrun, and the environment of the ranks."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from trainyard.protocol.attempt import AttemptSpec, NodeAllocation
from trainyard.run.failures import Failure
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from worker.launchers.base import Share
from worker.launchers.torchrun import TorchrunLauncher, torchrun_command
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


@pytest.fixture
def run(run: WorkerRun) -> WorkerRun:
    """A run directory with a launch record."""
    run.launch.write_text(LAUNCH.model_dump_json())
    return run


def test_torchrun_never_restarts_a_rank_itself(run: WorkerRun) -> None:
    first = LAUNCH.model_copy(update={"node_rank": 0})
    alone = torchrun_command(Share(run, first, (2,)), ["train"])
    of_two = torchrun_command(Share(run, LAUNCH, (2, 2)), ["train"])
    assert "--max-restarts=0" in alone
    assert "--max-restarts=0" in of_two
    assert f"--log-dir={run.torchrun}" in alone, "not in /tmp, where errors of programs would stay"
    assert {"--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"} <= {*alone}
    assert {"--node-rank=1", "--master-addr=10.0.0.5", "--master-port=29500"} <= {*of_two}


def environment(run: WorkerRun, spec: JobSpec) -> dict[str, str]:
    """The environment of the ranks of a job."""
    Path(run.spec).write_text(spec.model_dump_json())
    return Share(run, LAUNCH, (1, 1)).environment


def test_a_job_sees_the_gpus_of_its_slots_whatever_the_node_sets(
    run: WorkerRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {"CUDA_VISIBLE_DEVICES": "5", "HOME": "/h"})
    found = environment(run, JobSpec(env={"NCCL_DEBUG": "INFO"}))
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert (found["NCCL_DEBUG"], found["HOME"]) == ("INFO", "/h")


def test_a_stored_spec_that_names_gpus_takes_none(run: WorkerRun) -> None:
    share = Share(run, LAUNCH, (1, 1))
    # Refused at submission; a spec stored earlier must not use them either.
    share.__dict__["spec"] = JobSpec.model_construct(env={"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert share.environment["CUDA_VISIBLE_DEVICES"] == "GPU-b"


def test_threads_are_those_of_the_job_else_of_the_node_else_a_fair_share(
    run: WorkerRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def threads(job: dict[str, str], node: dict[str, str]) -> str:
        monkeypatch.setattr(os, "environ", node)
        return environment(run, JobSpec(env={**job}))["OMP_NUM_THREADS"]

    name = "OMP_NUM_THREADS"
    assert threads({name: "2"}, {name: "3"}) == "2"
    assert threads({}, {name: "3"}) == "3"
    assert threads({}, {}) == "8"


def test_what_belongs_to_the_worker_is_not_passed_on(
    run: WorkerRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = {"TRAINYARD_JOIN_TOKEN": "t", "CELERY_X": "x", "REDIS_URL": "redis://:p@h"}
    monkeypatch.setattr(os, "environ", worker)
    assert not {*worker} & {*environment(run, JobSpec())}


def test_ranks_are_contiguous_by_node(run: WorkerRun) -> None:
    def share(*slots: int, node_rank: int = 1) -> Share:
        nodes = [
            NodeAllocation(node=f"n{rank}", node_rank=rank, slots=tuple(range(count)))
            for rank, count in enumerate(slots)
        ]
        attempt = AttemptSpec(job_id="j", layout=Layout(dp_shard=5), allocation=tuple(nodes))
        Path(run.attempt).write_text(attempt.model_dump_json())
        run.launch.write_text(LAUNCH.model_copy(update={"node_rank": node_rank}).model_dump_json())
        return Share.read(run)

    assert [share(4, 1, node_rank=rank).ranks for rank in (0, 1)] == [range(4), range(4, 5)]
    assert [share(2, 2, 1, node_rank=rank).ranks for rank in (1, 2)] == [range(2, 4), range(4, 5)]
    assert "--nproc-per-node=1" in torchrun_command(share(4, 1), ["train"])
    with pytest.raises(ValueError, match=r"world_size=5 needs as many slots.* \[2, 2\]"):
        share(2, 2)
    with pytest.raises(ValueError, match="node rank 2 a share"):
        share(4, 1, node_rank=2)
    run.launch.unlink()
    with pytest.raises(ValueError, match=r"launch\.json or attempt\.json is missing or damaged"):
        Share.read(run)


def prepared(
    run: WorkerRun, rendezvous: str, *, sizes: tuple[int, ...] = (1, 1), rank: int = 0
) -> Any:
    """Return the state that a launcher finds before its node starts a process."""
    launch = LAUNCH.model_copy(update={"node_rank": rank, "rendezvous": rendezvous})
    return TorchrunLauncher(Share(run, launch, sizes)).prepare()


@pytest.mark.parametrize(
    ("sizes", "rank", "refused"),
    [((1, 1), 0, True), ((1, 1), 1, False), ((2,), 0, False)],
    ids=["first of two", "second of two", "single"],
)
def test_the_first_of_several_nodes_needs_the_port(
    run: WorkerRun, held: str, sizes: tuple[int, ...], rank: int, refused: bool
) -> None:
    assert isinstance(prepared(run, held, sizes=sizes, rank=rank), Failure) is refused


@pytest.fixture
def without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with a kernel that was booted without IPv6."""

    class Socket(socket.socket):
        def __init__(self, family: int = socket.AF_INET, *args: Any, **kwargs: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, *args, **kwargs)

    monkeypatch.setattr(socket, "socket", Socket)


@pytest.mark.usefixtures("without_ipv6")
def test_the_port_is_checked_on_a_host_without_ipv6(run: WorkerRun, held: str) -> None:
    assert isinstance(prepared(run, held), Failure)
    assert prepared(run, "127.0.0.1:0")[-3:] == ["check", str(run.root), "--alongside"]


def test_only_a_holder_of_the_port_refuses_a_launch(
    run: WorkerRun, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bind(_socket: socket.socket, _address: object) -> None:
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))

    monkeypatch.setattr(socket.socket, "bind", bind)
    assert not isinstance(prepared(run, held), Failure)


class _Ended:
    """Processes of a torchrun that ends before it starts a rank."""

    def spawn(self, command: list[str], *, output: Path, **_: Any) -> int:
        output.write_text("what torchrun printed")
        return 1

    def status(self, _pid: int) -> int:
        return 1


def test_torchrun_that_starts_no_rank_is_at_fault_unless_its_port_is_taken(
    run: WorkerRun, held: str
) -> None:
    """A process may take the port between the launcher's check and torchrun's start."""
    Path(run.spec).write_text(JobSpec().model_dump_json())
    found = []
    for rendezvous in (held, "127.0.0.1:0"):
        launch = LAUNCH.model_copy(update={"node_rank": 0, "rendezvous": rendezvous})
        share = Share(run, launch, (1, 1))
        share.__dict__["processes"] = _Ended()
        launcher = TorchrunLauncher(share)
        launcher.start()
        failure = launcher.observe().failure
        assert failure is not None
        assert failure.traceback == "what torchrun printed"
        found.append((failure.free_retry, failure.node_at_fault))
    assert found == [(True, False), (False, True)]

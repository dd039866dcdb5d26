"""Launches by a forkserver: supervised like others, with equal numbers; torchrun as fallback."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import Attempt, Place, wait_for
from tests.worker.launchers.process_launcher import STAND_IN, TORCHRUN, WARM
from trainyard.protocol.attempt import AttemptSpec, NodeAllocation
from trainyard.protocol.states import DesiredState
from trainyard.run.directory import Phase
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from worker.launch import prepare_run
from worker.launchers.base import Share
from worker.launchers.warm.warm_launcher import why_cold
from worker.node.node_store import LaunchRecord, WorkerRun

LAUNCH = LaunchRecord(
    attempt_id="1" * 26,
    node="node-1",
    node_rank=0,
    rendezvous="10.0.0.5:29500",
    report_seconds=0.5,
    data_dir="/data",
    environment={"OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "GPU-b"},
)
IMPORTED = {"PATH": "/bin", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "2"}


def share_of(run: WorkerRun, spec: JobSpec, sizes: tuple[int, ...] = (2,)) -> Share:
    Path(run.spec).write_text(spec.model_dump_json())
    allocation = tuple(
        NodeAllocation(node=f"node-{i + 1}", node_rank=i, slots=tuple(range(size)))
        for i, size in enumerate(sizes)
    )
    attempt = AttemptSpec(job_id="job", layout=Layout(dp_shard=sum(sizes)), allocation=allocation)
    Path(run.attempt).write_text(attempt.model_dump_json())
    return Share(run, LAUNCH, sizes)


@pytest.mark.parametrize(
    ("spec", "sizes", "imported", "why"),
    [
        ({}, (2,), {}, None),
        ({"env": {"NCCL_DEBUG": "INFO", "CUDA_LAUNCH_BLOCKING": "1"}}, (2,), {}, None),
        ({}, (1, 1), {}, "several nodes"),
        ({"model": {"factory": "code:make", "code": "data:c"}}, (2,), {}, "a model of its own"),
        ({"env": {"OMP_NUM_THREADS": "1"}}, (2,), {}, "OMP_NUM_THREADS"),
        ({"env": {"TORCH_LOGS": "graph_breaks"}}, (2,), {}, "TORCH_LOGS"),
        ({}, (2,), {"TZ": "UTC"}, "imports may read TZ"),
    ],
)
def test_a_launch_that_imports_could_tell_from_the_forkserver_is_cold(
    run: WorkerRun,
    monkeypatch: pytest.MonkeyPatch,
    spec: dict[str, Any],
    sizes: tuple[int, ...],
    imported: dict[str, str],
    why: str | None,
) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": "/bin"})
    found = why_cold(share_of(run, JobSpec.model_validate(spec), sizes), IMPORTED | imported)
    assert found is None if why is None else why in (found or "")


def lines_of(attempt: Attempt) -> list[tuple[int, float, str]]:
    """Return step, loss to its last bit, and data digest of each step."""
    with attempt.run.metrics.open() as file:
        lines = [json.loads(line) for line in file]
    return [(line["step"], line["values"]["train/loss"], line["data_digest"]) for line in lines]


def provenance(attempt: Attempt) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(attempt.run.provenance).read_text())
    return found


def test_forked_ranks_train_as_those_of_torchrun_do(place: Place) -> None:
    every_step = {"training": {"log_every_steps": 1}}
    cold = place.start(launcher=TORCHRUN, spec=every_step)
    assert cold.exit().outcome == "succeeded"
    warm = place.start(launcher=WARM, spec=every_step)
    record = warm.exit()
    assert record.outcome == "succeeded", warm.run.launcher_log.read_text()
    assert len(lines_of(warm)) == 5
    assert lines_of(warm) == lines_of(cold)
    assert {(end.exit_code, end.signal) for end in record.ranks} == {(0, None)}
    assert (provenance(cold)["launch"], provenance(warm)["launch"]) == ("cold", "warm")
    assert provenance(warm)["packages"] == provenance(cold)["packages"]


def test_a_signal_to_a_forked_rank_is_the_failure(place: Place) -> None:
    attempt = place.start(stand_in="sleep", launcher=WARM)
    attempt.phase(Phase.TRAINING)
    # Each rank and its wrapper carry the marks of the attempt.
    wait_for(lambda: len(attempt.processes) == 4, "four marked processes")
    attempt.kill_rank(1)
    failure = attempt.exit().failure
    assert failure is not None
    assert (failure.rank, failure.signal) == (1, "SIGKILL")


def test_ranks_do_not_wait_for_one_that_cannot_begin(place: Place) -> None:
    attempt = place.attempt(place.grant())
    attempt.seen.claimed = True
    prepare_run(place.local, attempt.id, attempt.seen.claim)
    (attempt.run.ranks / "1.start").mkdir()  # its wrapper cannot record it, as on a full disk
    words = (WARM, *STAND_IN, "sleep")
    attempt.supervisor = place.supervise(attempt.id, attempt.run, *words)
    failure = attempt.exit().failure
    assert failure is not None
    assert failure.reason == "launch_error", failure
    assert failure.message == "the wrappers of ranks ended before these began: 1 (status 126)"
    assert "1.start" in (failure.traceback or "")
    assert failure.node_at_fault


def test_forked_ranks_end_with_their_supervisor(place: Place) -> None:
    attempt = place.start(stand_in="sleep", launcher=WARM)
    attempt.phase(Phase.TRAINING)
    os.kill(attempt.pid, signal.SIGKILL)
    wait_for(lambda: not attempt.processes, "end of the ranks")


def test_an_order_to_stop_reaches_forked_ranks(place: Place) -> None:
    attempt = place.start(stand_in="chatter", launcher=WARM)
    attempt.phase(Phase.TRAINING)
    for pid in (attempt.pid, *attempt.processes):  # to every process at the same time, like Slurm
        with suppress(ProcessLookupError):  # the first ones may have ended the others
            os.kill(pid, signal.SIGTERM)
    record = attempt.exit()
    assert record.failure is not None
    assert record.failure.reason == "preempted"


def test_a_check_that_refuses_is_the_failure_whatever_the_ranks_do(place: Place) -> None:
    attempt = place.start(stand_in="check_fails", launcher=WARM)
    record = attempt.exit()
    assert record.failure is not None
    assert record.failure.reason == "data_error"
    assert record.failure.message == "the check of spec and input ended with status 1"
    assert "no such corpus" in (record.failure.traceback or "")


@pytest.mark.parametrize("launcher", [WARM, TORCHRUN])
def test_the_error_of_the_check_counts_and_not_that_of_the_ranks(
    place: Place, launcher: str
) -> None:
    attempt = place.start(launcher=launcher, spec={"data": {"path": "data:missing.txt"}})
    record = attempt.exit()
    assert record.failure is not None
    assert (record.failure.reason, record.failure.rank) == ("data_error", None)
    assert "missing.txt" in record.failure.message
    assert record.failure.node == attempt.node


def test_ranks_that_left_before_the_end_of_the_node_wait_for_no_check(place: Place) -> None:
    attempt = place.start(stand_in="check_outlasts", launcher=WARM)
    attempt.phase(Phase.TRAINING)
    os.kill(attempt.pid, signal.SIGTERM)
    failure = attempt.exit().failure
    assert failure is not None
    assert failure.reason == "preempted"


def test_a_check_that_sigterm_ends_beside_the_ranks_is_a_preemption(place: Place) -> None:
    attempt = place.start(stand_in="check_outlasts", launcher=WARM)
    attempt.phase(Phase.TRAINING)
    for pid in attempt.processes:
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.5)
    os.kill(attempt.pid, signal.SIGTERM)
    failure = attempt.exit().failure
    assert failure is not None
    assert failure.reason == "preempted", failure.message


def test_a_cancel_waits_for_no_check(place: Place) -> None:
    attempt = place.start(stand_in="check_lasts", launcher=WARM)
    attempt.phase(Phase.TRAINING)
    attempt.seen.desired = DesiredState.CANCEL
    assert attempt.exit().outcome == "cancelled"

"""A supervisor from its check to its exit record, with real processes and real signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.exploits import COUSINS, shell_by_warnings
from tests.worker.conftest import LONG, Attempt, Place, make_place, wait_for
from tests.worker.fake_server import FakeServer
from tests.worker.launchers.process_launcher import PROCESSES, TORCHRUN, WARM
from tests.worker.stand_in import DAEMON
from trainyard.protocol.states import DesiredState
from trainyard.run.directory import Phase
from trainyard.run.records import ExitRecord
from worker.node.process_identity import process_stat

SOON = 10.0


def assert_killed(attempt: Attempt, rank: int, *, killed_at: float) -> None:
    """Check that the exit record names rank and signal within 10 s, and that nothing remains."""
    record = attempt.exit()
    assert record.time - killed_at < SOON
    assert record.outcome == "failed"
    assert record.failure is not None
    assert (record.failure.reason, record.failure.rank, record.failure.signal) == (
        "trainer_error",
        rank,
        "SIGKILL",
    )
    first = record.ranks[0]
    assert (first.rank, first.signal, first.exit_code) == (rank, "SIGKILL", None)
    assert abs(first.time - killed_at) < 2


def assert_no_rank_began(attempt: Attempt, record: ExitRecord) -> None:
    assert record.ranks == ()
    assert all(report.rank_pids == {} for report in attempt.seen.reports)
    assert "begins" not in attempt.log()


def test_an_attempt_trains_until_a_stop_saves_it_and_every_byte_arrives(place: Place) -> None:
    attempt = place.start(spec=LONG)
    wait_for(lambda: attempt.seen.files.get("metrics", b"").count(b"\n") >= 5, "five steps")
    attempt.seen.desired = DesiredState.STOP
    record = attempt.exit()
    assert (record.outcome, record.failure) == ("stopped", None)
    assert b'"checkpoint_committed"' in attempt.seen.files["events"]
    assert [end.exit_code for end in record.ranks] == [0, 0]
    for name, path in (
        ("metrics", attempt.run.metrics),
        ("events", attempt.run.events),
        ("log:0", attempt.run.log(0)),
        ("log:1", attempt.run.log(1)),
    ):
        written = (attempt.run.root / path).read_bytes()
        assert attempt.seen.files.get(name, b"") == written
    steps = [json.loads(line)["step"] for line in attempt.seen.files["metrics"].splitlines()]
    assert steps == list(range(1, len(steps) + 1))
    assert any(report.provenance for report in attempt.seen.reports)
    assert sum(report.provenance is not None for report in attempt.seen.reports) == 1
    assert set(attempt.seen.reports[-1].rank_pids) == {0, 1}
    assert attempt.supervisor is not None
    assert attempt.supervisor.wait(30) == 0
    assert place.node.live() == []


def test_a_rank_killed_while_the_cache_is_built(place: Place) -> None:
    attempt = place.start(spec={"data": {"source": "corpus", "path": None}})
    attempt.phase(Phase.BUILDING_CACHE)
    assert_killed(attempt, 1, killed_at=attempt.kill_rank(1))
    beat = attempt.seen.reports[-1].heartbeat
    assert beat is not None
    assert beat.phase == Phase.BUILDING_CACHE


def test_a_rank_killed_while_the_other_loops(place: Place) -> None:
    attempt = place.start(stand_in="loop")
    attempt.phase(Phase.TRAINING)
    assert_killed(attempt, 1, killed_at=attempt.kill_rank(1))


def test_what_ranks_leave_behind_is_ended(place: Place) -> None:
    attempt = place.start(stand_in="brood")
    wait_for(lambda: all(DAEMON in attempt.log(rank) for rank in (0, 1)), "a daemon each")
    killed_at = attempt.kill_rank(0)
    assert_killed(attempt, 0, killed_at=killed_at)


def test_others_get_time_to_write_what_they_saw(place: Place) -> None:
    attempt = place.start(stand_in="write_late", launcher=TORCHRUN)
    record = attempt.exit()
    assert "what rank 0 saw" in attempt.log(0)
    assert record.failure is not None
    assert (record.failure.rank, record.failure.exit_code) == (1, 7)


def test_an_exit_code_without_a_word_is_named(place: Place) -> None:
    failure = place.start(stand_in="fail_silently").exit().failure
    assert failure is not None
    assert (failure.reason, failure.rank, failure.exit_code) == ("trainer_error", 1, 7)
    assert failure.node == "node-1"


def test_what_the_check_finds_is_the_failure_and_no_rank_has_saved(place: Place) -> None:
    (place.folder / "data" / "text.txt").write_text("")
    attempt = place.start()
    record = attempt.exit()
    assert record.failure is not None
    assert record.failure.reason == "data_error"
    assert "text.txt" in record.failure.message
    assert record.failure.rank is None
    assert "text.txt is empty" in attempt.log(0)
    assert not list((place.folder / "checkpoints").rglob("COMMITTED"))


def test_a_node_runs_code_of_a_job_only_where_its_settings_allow_it(place: Place) -> None:
    attempt = place.start(spec={"model": {"factory": "gpt:build"}})
    failure = attempt.exit().failure
    assert failure is not None
    assert failure.reason == "not_allowed"
    assert "TRAINYARD_ALLOW_CODE=true" in failure.message
    assert not attempt.run.launcher_log.exists()


def test_a_check_that_fails_without_a_word_is_a_data_error(place: Place) -> None:
    attempt = place.start(stand_in="check_fails")
    record = attempt.exit()
    assert_no_rank_began(attempt, record)
    assert record.failure is not None
    assert record.failure.reason == "data_error"
    assert "no such corpus" in (record.failure.traceback or "")


def test_no_process_starts_with_variables_that_only_code_may_set(
    place: Place, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    env = dict(COUSINS) | shell_by_warnings(f"touch {mark}") | {"NCCL_DEBUG": "INFO"}
    attempt = place.start(spec={"env": env})
    record = attempt.exit()
    assert not mark.exists()
    assert record.failure is not None
    assert record.failure.reason == "not_allowed"
    refused = record.failure.message.partition("Refused: ")[2].partition("; ")[0].split(", ")
    assert refused == [f"env.{name}" for name in env if name != "NCCL_DEBUG"]
    assert record.ranks == ()
    assert not list(Path(attempt.run.logs).glob("rank-*"))
    assert not attempt.run.launcher_log.exists()


def test_a_value_that_does_not_fit_starts_no_process(place: Place) -> None:
    record = place.start(spec={"env": {"TORCH_LOGS": "antigravity.x"}}).exit()
    assert record.failure is not None
    assert record.failure.reason == "not_allowed"
    assert "the value of TORCH_LOGS is not legal" in record.failure.message


def test_a_port_that_is_taken_puts_the_launch_back_before_any_process(
    place: Place, held: str
) -> None:
    attempt = place.start(stand_in="succeed", launcher=TORCHRUN, nodes=2, rendezvous=held)
    record = attempt.exit()
    failure = record.failure
    assert failure is not None
    assert failure.reason == "launch_error"
    assert failure.message == (f"{held}, where the nodes of the attempt meet, is taken on node-1")
    assert (failure.free_retry, failure.node_at_fault) == (True, False)
    assert failure.remedy.text == "The next attempt uses another port."
    assert record.ranks == ()
    assert not attempt.run.launcher_log.exists()
    assert not list(Path(attempt.run.logs).glob("rank-*"))


def test_a_launcher_that_binds_no_port_is_not_put_back(place: Place, held: str) -> None:
    attempt = place.start(stand_in="succeed", launcher=PROCESSES, ranks=2, nodes=2, rendezvous=held)
    assert attempt.exit().outcome == "succeeded"


def test_torchrun_that_is_killed_is_named_and_no_rank(place: Place) -> None:
    attempt = place.start(stand_in="sleep", launcher=TORCHRUN)
    attempt.phase(Phase.TRAINING)
    rank = process_stat(attempt.rank_pid(0))
    assert rank is not None
    wrapper = process_stat(rank.parent)
    assert wrapper is not None
    torchrun = wrapper.parent
    os.kill(torchrun, signal.SIGKILL)
    failure = attempt.exit().failure
    assert failure is not None
    assert (failure.reason, failure.rank, failure.signal) == ("launch_error", None, "SIGKILL")
    assert failure.node_at_fault
    assert failure.message == (
        f"torchrun itself (pid {torchrun}) was ended by SIGKILL, and its ranks with it"
    )


def test_success_counts_whatever_the_teardown_did(place: Place) -> None:
    record = place.start(stand_in="abort_afterwards").exit()
    assert (record.outcome, record.failure) == ("succeeded", None)
    assert {end.signal for end in record.ranks} == {"SIGABRT"}


@pytest.mark.parametrize(("launcher", "more"), [(TORCHRUN, set()), (WARM, {"TRAINYARD_STORE_FD"})])
def test_ranks_get_the_job_environment_and_no_secret(
    place: Place, launcher: str, more: set[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINYARD_BROKER_URL", "redis://:password@127.0.0.1/0")
        patch.setenv("TRAINYARD_JOIN_TOKEN", "join")
        spec = {"env": {"NCCL_DEBUG": "INFO"}}
        attempt = place.start(ranks=1, stand_in="succeed", launcher=launcher, spec=spec)
    assert attempt.exit().outcome == "succeeded"
    line = next(line for line in attempt.log().splitlines() if line.startswith("{"))
    environment = json.loads(line)
    assert environment["NCCL_DEBUG"] == "INFO"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert {name for name in environment if name.startswith("TRAINYARD_")} == {
        "TRAINYARD_ATTEMPT_ID",
        "TRAINYARD_LAUNCH",
        "TRAINYARD_NODE",
        *more,
    }
    assert attempt.seen.claim.attempt_token not in line


def test_a_hang_is_ended_and_named(place: Place) -> None:
    attempt = place.start(stand_in="sleep", spec={"guard": {"hang_seconds": 2.0}})
    record = attempt.exit()
    assert record.failure is not None
    assert record.failure.reason == "hang"
    assert "phase training at step 3" in record.failure.message


def test_ranks_that_hang_say_where(place: Place) -> None:
    attempt = place.start(stand_in="stuck", spec={"guard": {"hang_seconds": 2.0}})
    record = attempt.exit()
    assert record.failure is not None
    assert record.failure.reason == "hang"
    assert "the logs of ranks [0, 1] end with what their threads were doing" in (
        record.failure.message
    )
    assert record.failure.path == str(attempt.run.logs)
    for rank in (0, 1):
        assert "in never_answer" in attempt.log(rank)


def test_a_rank_that_does_not_answer_logs_its_stacks(place: Place) -> None:
    attempt = place.start(stand_in="time_out")
    record = attempt.exit()
    assert record.failure is not None
    assert (record.failure.reason, record.failure.rank) == ("hang", 0)
    assert "another rank did not answer" in record.failure.message
    assert record.failure.path == str(attempt.run.logs)
    assert "in never_answer" in attempt.log(1)


def test_cancel_leaves_at_once(place: Place) -> None:
    attempt = place.start(stand_in="loop")
    attempt.phase(Phase.TRAINING)
    asked_at = time.time()
    attempt.seen.desired = DesiredState.CANCEL
    record = attempt.exit()
    assert record.outcome == "cancelled"
    assert record.time - asked_at < SOON


def test_stop_before_any_rank_begins(place: Place) -> None:
    attempt = place.start(stand_in="check_lasts")
    wait_for(lambda: attempt.seen.reports, "report")
    attempt.seen.desired = DesiredState.STOP
    record = attempt.exit()
    assert record.outcome == "stopped"
    assert_no_rank_began(attempt, record)


def test_sigterm_is_a_preemption(place: Place) -> None:
    attempt = place.start(stand_in="chatter")
    wait_for(lambda: attempt.log(), "output")
    os.kill(attempt.pid, signal.SIGTERM)
    record = attempt.exit()
    assert record.outcome == "failed"
    assert record.failure is not None
    assert record.failure.reason == "preempted"


def test_sigterm_to_every_process_saves_as_a_preemption_does(place: Place) -> None:
    """Slurm signals a step like this, and torchrun and the ranks must survive until the save."""
    attempt = place.start(spec=LONG)
    wait_for(lambda: attempt.seen.files.get("metrics", b"").count(b"\n") >= 5, "five steps")
    processes = attempt.processes
    assert len(processes) >= 5, "torchrun, two wrappers and two ranks"
    for pid in (*processes, attempt.pid):
        os.kill(pid, signal.SIGTERM)
    record = attempt.exit()
    assert [end.exit_code for end in record.ranks] == [0, 0]
    assert record.failure is not None
    assert record.failure.reason == "preempted"
    steps = attempt.seen.files["metrics"].splitlines()
    assert (
        f"saved as {attempt.seen.claim.attempt.job_id}.a1.step-{json.loads(steps[-1])['step']}"
        in record.failure.message
    )


def test_sigterm_after_a_stop_is_a_stop(place: Place) -> None:
    attempt = place.start(stand_in="chatter")
    wait_for(lambda: attempt.log(), "output")
    attempt.seen.desired = DesiredState.STOP
    wait_for((attempt.run.root / "stop").exists, "stop file")
    os.kill(attempt.pid, signal.SIGTERM)
    assert attempt.exit().outcome == "stopped"


def test_an_outrun_attempt_ends_everything_and_keeps_its_record(place: Place) -> None:
    attempt = place.start(stand_in="sleep")
    attempt.phase(Phase.TRAINING)
    attempt.seen.current = False
    assert attempt.supervisor is not None
    assert attempt.supervisor.wait(60) == 0
    assert attempt.processes == []
    assert attempt.seen.exit is None
    assert json.loads((attempt.run.root / "exit.json").read_text())["outcome"] == "cancelled"
    assert place.node.live() == []


def test_two_nodes_meet_in_the_order_of_their_node_ranks(place: Place, other_place: Place) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared: dict[str, Any] = {
        "nodes": 2,
        "stand_in": "succeed",
        "launcher": TORCHRUN,
        "rendezvous": f"127.0.0.1:{port}",
    }
    second = other_place.start(**shared, node_rank=1)  # comes first, and is the second all the same
    wait_for(second.run.launcher_log.exists, "torchrun")
    first = place.start(**shared, node_rank=0, attempt_id=second.id)
    assert first.exit().outcome == "succeeded"
    assert second.exit().outcome == "succeeded"
    assert "rank 0 of 2 begins" in first.log(0)
    assert "rank 1 of 2 begins" in second.log(1)


@pytest.fixture
def other_place(tmp_path: Path) -> Iterator[Place]:
    server = FakeServer()
    made = make_place(tmp_path, server, name="node-2")
    yield made
    made.clean()
    server.close()

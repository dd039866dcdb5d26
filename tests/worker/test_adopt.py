"""Recovery after an unexpected end of a supervisor, a launch or the whole machine."""

from __future__ import annotations

import os
import signal

import pytest

from tests.worker.conftest import NODE, Attempt, Place, wait_for
from tests.worker.stand_in import DAEMON
from trainyard.protocol.states import DesiredState
from trainyard.protocol.worker_messages import Identity
from trainyard.run.atomic import replace_file
from trainyard.run.directory import Phase
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.record_base import to_json
from trainyard.run.records import Outcome
from worker.adopt import adopt, prove_gone
from worker.node.node_store import identity_of
from worker.node.process_tree import NotEndedError, ProcessTree


def kill_supervisor(attempt: Attempt) -> Identity:
    identity = identity_of(attempt.run)
    assert identity is not None
    assert attempt.supervisor is not None
    os.kill(identity.pid, signal.SIGKILL)
    attempt.supervisor.wait()
    return identity


def test_a_living_supervisor_is_adopted(place: Place) -> None:
    attempt = place.start(stand_in="sleep")
    attempt.phase(Phase.TRAINING)
    assert adopt(place.node) == (attempt.id,)
    assert prove_gone(place.node, [attempt.id], name=NODE) == ()
    assert attempt.processes != []


def test_ranks_end_with_their_supervisor(place: Place) -> None:
    attempt = place.start(stand_in="sleep")
    attempt.phase(Phase.TRAINING)
    kill_supervisor(attempt)
    # Only the kernel ends them: no process has checked yet.
    wait_for(lambda: not attempt.processes, "end of the ranks")


def test_the_end_of_a_supervisor_is_proved_and_reported(place: Place) -> None:
    attempt = place.start(stand_in="brood")
    wait_for(lambda: all(DAEMON in attempt.log(rank) for rank in (0, 1)), "a daemon each")
    wait_for(lambda: attempt.seen.reports, "report")
    before = kill_supervisor(attempt)
    assert adopt(place.node) == (attempt.id,)  # a reporter takes the place of the dead supervisor
    record = attempt.exit()
    assert record.outcome == "failed"
    assert record.failure is not None
    assert record.failure.reason == "launch_error"
    assert record.failure.node_at_fault
    assert f"pid {before.pid}" in record.failure.message
    assert attempt.seen.reports[-1].identity == before
    wait_for(lambda: not place.node.live(), "end of the attempt on the node")
    assert attempt.seen.exits == 1


def test_what_a_dead_supervisor_had_not_sent_is_sent(place: Place) -> None:
    attempt = place.start(stand_in="chatter")
    wait_for(lambda: attempt.log(), "output")
    place.server.close()
    (attempt.run.root / "stop").touch()
    wait_for((attempt.run.root / "exit.json").exists, "exit record on the node")
    kill_supervisor(attempt)
    place.server.open()
    adopt(place.node)
    assert attempt.exit().outcome == "stopped"
    assert attempt.seen.files["log:1"] == (attempt.run.root / "logs/rank-1.log").read_bytes()


def test_the_outcome_of_the_trainer_counts_although_its_supervisor_died(place: Place) -> None:
    attempt = place.start(stand_in="sleep")
    attempt.phase(Phase.TRAINING)
    kill_supervisor(attempt)
    outcome = Outcome(outcome="succeeded", step=5)
    replace_file(attempt.run.root / "outcome.json", to_json(outcome))
    adopt(place.node)
    record = attempt.exit()
    assert (record.outcome, record.failure) == ("succeeded", None)


@pytest.mark.parametrize(
    ("changed", "message", "searched"),
    [
        ({"boot_id": "another-boot"}, "the machine was restarted", True),
        ({"pid_namespace": "1"}, "the container was restarted", False),
    ],
)
def test_what_ends_with_its_machine_or_container_is_a_lost_node(
    place: Place, changed: dict[str, str], message: str, searched: bool
) -> None:
    attempt = place.start(stand_in="sleep")
    attempt.phase(Phase.TRAINING)
    before = kill_supervisor(attempt)
    error = Failure(reason=FailureReason.TRAINER_ERROR, message="a peer left", rank=0)
    replace_file(attempt.run.root / "error.json", to_json(error))
    replace_file(attempt.run.identity, before.model_copy(update=changed).model_dump_json())
    adopt(place.node)
    record = attempt.exit()
    assert record.failure is not None
    assert (record.failure.reason, record.failure.message) == ("node_lost", message)
    assert record.unreported_commit == searched, "the last events may be lost with the power"


@pytest.mark.parametrize("dies", [False, True])
def test_ranks_that_end_during_a_commit_are_reported_so(place: Place, dies: bool) -> None:
    attempt = place.start(stand_in="sleep")
    attempt.phase(Phase.TRAINING)
    attempt.run.committing.touch()
    if dies:
        kill_supervisor(attempt)
        adopt(place.node)
    else:
        attempt.seen.desired = DesiredState.CANCEL
    assert attempt.exit().unreported_commit


def test_another_process_of_the_same_pid_is_not_the_supervisor(place: Place) -> None:
    attempt = place.start(stand_in="sleep")
    attempt.phase(Phase.TRAINING)
    before = kill_supervisor(attempt)
    recycled = before.model_copy(update={"pid": os.getpid()})  # alive, but another start time
    replace_file(attempt.run.identity, recycled.model_dump_json())
    adopt(place.node)
    record = attempt.exit()
    assert record.failure is not None
    assert record.failure.reason == "launch_error"


def test_a_supervisor_that_cannot_read_its_run_reports_that(place: Place) -> None:
    attempt = place.start(stand_in="succeed", nodes=1, ranks=2, damage="spec.json")
    record = attempt.exit()
    assert record.failure is not None
    assert record.failure.reason == "launch_error"
    assert "SpecError" in (record.failure.traceback or "")


def test_an_attempt_that_cannot_even_be_reported_is_gone(place: Place) -> None:
    attempt = place.start(stand_in="succeed", damage="attempt.json")
    assert attempt.supervisor is not None
    assert attempt.supervisor.wait(60) == 0
    assert prove_gone(place.node, [attempt.id], name=NODE) == (attempt.id,)


def test_a_damaged_launch_record_does_not_hold_the_attempt(place: Place) -> None:
    attempt = place.start(stand_in="brood")
    wait_for(lambda: all(DAEMON in attempt.log(rank) for rank in (0, 1)), "a daemon each")
    kill_supervisor(attempt)
    attempt.run.launch.write_bytes(b"{")
    assert adopt(place.node) == (attempt.id,)  # the process that should report cannot
    wait_for(lambda: not place.node.live(), "release of the lock")
    assert adopt(place.node) == ()
    assert prove_gone(place.node, [attempt.id], name=NODE) == (attempt.id,)
    assert attempt.processes == []


def test_what_a_dead_supervisor_left_is_ended_although_a_record_is_damaged(place: Place) -> None:
    attempt = place.start(stand_in="brood")
    wait_for(lambda: all(DAEMON in attempt.log(rank) for rank in (0, 1)), "a daemon each")
    kill_supervisor(attempt)
    assert attempt.processes  # the daemons outlive their ranks
    record = attempt.run.root / "attempt.json"
    record.write_bytes(record.read_bytes()[: record.stat().st_size // 2])
    assert adopt(place.node) == (attempt.id,)
    wait_for(lambda: not place.node.live(), "end of the attempt on the node")
    assert attempt.processes == []


def test_an_attempt_that_cannot_be_ended_does_not_hide_the_others(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, gone = place.grant(), place.grant()
    end = ProcessTree.end

    def refuse(tree: ProcessTree, *, descendants: bool = True) -> None:
        if tree._attempt_id == stuck:
            raise NotEndedError("pid 1 may not be ended")
        end(tree, descendants=descendants)

    monkeypatch.setattr(ProcessTree, "end", refuse)
    assert prove_gone(place.node, [stuck, gone], name=NODE) == (gone,)


def test_a_claim_that_led_nowhere_is_gone(place: Place) -> None:
    claimed = place.grant()
    assert prove_gone(place.node, [claimed], name=NODE) == (claimed,)


def test_a_claim_whose_launch_died_is_gone(place: Place) -> None:
    claimed = place.grant()
    lock = place.node.lock(claimed, create=True)
    assert lock is not None
    assert prove_gone(place.node, [claimed], name=NODE) == ()  # a launch is in progress
    os.close(lock.fd)
    assert prove_gone(place.node, [claimed], name=NODE) == (claimed,)
    assert place.node.live() == []


def test_a_removed_run_directory_is_forgotten(place: Place) -> None:
    attempt_id = place.grant()
    attempt = place.attempt(attempt_id)
    lock = place.node.lock(attempt_id, create=True)
    assert lock is not None
    with lock:
        lock.lead_to(attempt.run)
    assert adopt(place.node) == ()
    assert place.node.live() == []

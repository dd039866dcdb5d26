"""Unreported commits of a lost attempt: found, catalogued, and awaited within bounds."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text, update

from server.core.database.tables import nodes
from server.jobs.jobs.service import delete as delete_job
from server.jobs.jobs.service import stop
from tests.actors import ADA
from tests.manifests import make_manifest, state_at
from tests.server.harness import AnyRow, Harness
from tests.server.yard import Yard
from trainyard.protocol.manifest import DCP_METADATA, ManifestFile
from trainyard.protocol.operations import OperationKind, OperationOutcome
from trainyard.protocol.states import JobState, OperationState
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.records import ExitRecord

LOST = {"retry": {"node_lost_after_seconds": 60.0}}


def manifest(job_id: str, step: int, *, attempt: int = 1, **changes: Any) -> str:
    made = make_manifest(
        job_id,
        attempt,
        state_at(step, sequences=16, tokens=128),
        files=(ManifestFile(path=DCP_METADATA, size=9, xxh3_128="b" * 32),),
    )
    return made.model_copy(update=changes).model_dump_json()


def lose(harness: Harness, *saved: int, **sections: Any) -> str:
    """Run a job that reports some commits, and is then silent until it counts as lost."""
    job_id, (supervisor,) = harness.running(**{**LOST, **sections})
    for step in saved:
        harness.commit_checkpoint(job_id, step)
    supervisor.train(50)
    fall_silent(harness)
    return job_id


def fall_silent(harness: Harness) -> None:
    harness.reconcile(seconds=61)
    come_online(harness)


def come_online(harness: Harness) -> None:
    with harness.context.database.write() as connection:
        values = {"offline_since": None, "heartbeat_at": harness.clock.now()}
        connection.execute(update(nodes).values(values))


def search(yard: Yard) -> AnyRow:
    (operation,) = yard.operations(kind=OperationKind.RECOVER.value)
    return operation


def found(yard: Yard, operation_id: str, *texts: str, fence: int = 1) -> None:
    outcome = OperationOutcome(outcome="succeeded", message="found", commits=texts)
    yard.report(operation_id, fence=fence, outcome=outcome)


def test_a_lost_attempt_is_searched_and_the_next_goes_on_from_what_was_found(
    yard: Yard, harness: Harness
) -> None:
    job_id = lose(harness, 0, 20)
    assert harness.job(job_id).state == JobState.QUEUED
    operation = search(yard)
    task = operation.task.read("task")
    assert (task.recover.attempt, task.recover.fence, task.recover.after_step) == (1, 2, 20)
    assert (task.job_id, task.root, task.paths) == (job_id, "checkpoints", ())
    assert operation.storage == harness.job(job_id).storage
    harness.pass_time(10)
    assert harness.place() == 0
    assert harness.job(job_id).reason == "waits until the checkpoints of attempt 1 are found"
    assert yard.give() == [(operation.id, "node-1")]
    yard.claim(operation.id)
    assert harness.place() == 0
    found(yard, operation.id, manifest(job_id, 48), manifest(job_id, 40))
    assert harness.place() == 1
    assert harness.attempt(job_id).start_step == 48
    rows = yard.checkpoints(job_id)
    assert rows[f"{job_id}.a1.step-40"].path == f"{job_id}/a1/step-40"
    assert [e.actor for e in yard.said(job_id, "checkpoint_committed")] == ["recovery"] * 2
    assert search(yard).outcome.commits == ()


def test_what_is_not_of_the_attempt_is_not_entered(yard: Yard, harness: Harness) -> None:
    job_id = lose(harness, 0)
    operation = search(yard)
    yard.give()
    yard.claim(operation.id)
    texts = [
        "{}",
        "no json",
        manifest(job_id, 8, attempt=2),
        manifest("another", 9),
        manifest(job_id, 10, files=()),
        manifest(job_id, 11),
    ]
    found(yard, operation.id, *texts)
    assert yard.kept(job_id) == ["a1.step-0", "a1.step-11"]


def test_retention_looks_once_after_all_were_entered(yard: Yard, harness: Harness) -> None:
    job_id = lose(harness, 0, checkpoint={"keep_latest_k": 2})
    operation = search(yard)
    yard.give()
    yard.claim(operation.id)
    found(yard, operation.id, *(manifest(job_id, step) for step in (40, 30, 20)))
    assert yard.kept(job_id) == ["a1.step-30", "a1.step-40"]


def test_a_search_that_fails_or_is_taken_back_holds_nothing_back(
    yard: Yard, harness: Harness
) -> None:
    job_id = lose(harness, 0, 20)
    operation = search(yard)
    yard.give()
    yard.claim(operation.id)
    harness.pass_time(10)
    assert harness.place() == 0
    yard.report(
        operation.id, outcome=OperationOutcome(outcome="failed", message="Permission denied")
    )
    assert search(yard).state == OperationState.QUEUED
    assert harness.place() == 1
    assert harness.attempt(job_id).start_step == 20
    harness.pass_time(30)
    assert (operation.id, "node-1") in yard.give(), "what it finds still counts"


def test_the_wait_is_bounded_and_a_late_result_still_counts(yard: Yard, harness: Harness) -> None:
    job_id = lose(harness, 0, 20)
    operation = search(yard)
    yard.give()
    yard.claim(operation.id)
    seconds = harness.context.settings.recovery_seconds
    harness.pass_time(10)  # the pause before a retry
    assert harness.place() == 0
    harness.pass_time(seconds - 1)
    assert harness.place() == 0
    harness.pass_time(1)
    assert harness.place() == 1
    assert harness.attempt(job_id).start_step == 20
    found(yard, operation.id, manifest(job_id, 40))
    assert "a1.step-40" in yard.kept(job_id)
    (supervisor,) = harness.claim_all(job_id)
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    harness.pass_time(60)
    assert harness.place() == 1
    assert harness.attempt(job_id).start_step == 20, "it lies on a branch that was left"


def test_without_a_node_that_sees_the_storage_no_wait_begins(yard: Yard, harness: Harness) -> None:
    job_id = lose(harness, 0, 20)
    with harness.context.database.write() as connection:
        connection.execute(update(nodes).values(offline_since=harness.clock.now()))
    harness.pass_time(1000)
    assert harness.place() == 0
    assert search(yard).awaited_since is None
    assert "found" not in (harness.job(job_id).reason or "")
    come_online(harness)
    assert harness.place() == 0
    assert harness.job(job_id).reason == "waits until the checkpoints of attempt 1 are found"
    assert search(yard).awaited_since == harness.clock.now()


@pytest.mark.parametrize("ordered", [False, True])
def test_an_attempt_that_ended_during_a_save_is_searched(
    yard: Yard, harness: Harness, ordered: bool
) -> None:
    """Of a stop, too: the signal ends a program without a handler at any moment."""
    job_id, (supervisor,) = harness.running()
    harness.commit_checkpoint(job_id, 20)
    if ordered:
        stop(harness.context, job_id, actor=ADA, reason="")
    record = ExitRecord(
        outcome="stopped" if ordered else "failed",
        failure=None if ordered else Failure(reason=FailureReason.TRAINER_ERROR, message="killed"),
        ranks=(),
        time=1.0,
        unreported_commit=True,
    )
    supervisor.report(exit_record=record)
    operation = search(yard)
    assert operation.task.read("task").recover.after_step == 20
    assert operation.reason == "attempt 1 ended during a save"
    yard.give()
    yard.claim(operation.id)
    found(yard, operation.id, manifest(job_id, 40))
    assert "a1.step-40" in yard.kept(job_id)
    if not ordered:
        harness.pass_time(60)
        assert harness.place() == 1
        assert harness.attempt(job_id).start_step == 40


def test_an_attempt_that_was_heard_to_its_end_is_not_searched(yard: Yard, harness: Harness) -> None:
    job_id, (supervisor,) = harness.running()
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    harness.pass_time(60)
    assert harness.place() == 1
    # The second is not claimed: nothing was launched, so nothing was saved.
    stop(harness.context, job_id, actor=ADA, reason="")
    assert yard.operations(kind=OperationKind.RECOVER.value) == []


def test_the_search_goes_before_other_operations_and_with_its_job(
    yard: Yard, harness: Harness
) -> None:
    job_id = lose(harness, 0, retry={**LOST["retry"], "on": []})
    assert harness.job(job_id).state == JobState.FAILED
    operation = search(yard)
    delete_job(harness.context, job_id, checkpoints="delete", actor=ADA)
    assert search(yard).state == OperationState.CANCELLED
    assert operation.id == search(yard).id


def test_an_unreadable_search_stops_no_placement(yard: Yard, harness: Harness) -> None:
    job_id = lose(harness, 0)
    with harness.context.database.write() as connection:
        connection.execute(
            text("UPDATE operations SET task = :task WHERE id = :id"),
            {"task": '{"kind": "recover", "of_a_later_version": 1}', "id": search(yard).id},
        )
    harness.pass_time(10)
    assert harness.place() == 1
    assert harness.job(job_id).state == JobState.STARTING, "no node can carry out the search"

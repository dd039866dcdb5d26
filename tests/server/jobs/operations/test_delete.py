"""Deletion: its guards, the mark, the operation, and jobs deleted with their checkpoints."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from server.core.context import Context
from server.core.database.tables import checkpoints, jobs
from server.core.errors import ConflictError, InvalidRequestError, NotFoundError
from server.core.liveness import beat
from server.core.subject import RETENTION
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.checkpoints import deletion, service
from server.jobs.checkpoints.queries import list_checkpoints, read_checkpoint
from server.jobs.jobs.fork import fork
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import delete as delete_job
from server.jobs.jobs.service import stop
from tests.actors import ADA, EVE
from tests.server.yard import Yard
from trainyard.protocol.operations import MAX_TRIES, OperationKind, OperationOutcome
from trainyard.protocol.rest.checkpoints import ForkRequest
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import OperationState
from trainyard.run.checkpoint_faults import CheckpointFault


def stopped(yard: Yard, *steps: int, outcome: str = "stopped") -> tuple[str, list[str]]:
    """Return a job that has ended, and the ids of its checkpoints."""
    job_id, (supervisor,) = yard.harness.running(step=9)
    found = [yard.harness.commit_checkpoint(job_id, step) for step in steps]
    if outcome == "stopped":
        stop(yard.harness.context, job_id, actor=ADA, reason="")
    supervisor.end(outcome)
    return job_id, found


def refused(context: Context, checkpoint: str, match: str) -> None:
    with pytest.raises(ConflictError, match=match):
        deletion.delete(context, checkpoint, actor=ADA)


def test_a_checkpoint_goes_mark_first_row_last(yard: Yard, context: Context) -> None:
    job_id, (older, newer) = stopped(yard, 4, 8)
    operation_id = deletion.delete(context, newer, actor=ADA)
    assert yard.kept(job_id) == ["a1.step-4"]
    assert deletion.delete(context, newer, actor=EVE) == operation_id
    with pytest.raises(InvalidRequestError, match="is being deleted"):
        resume(context, job_id, ResumeRequest(checkpoint_id=newer), actor=ADA)
    for act in (service.verify, lambda *a, **k: service.set_pin(*a, pinned=True, **k)):
        with pytest.raises(ConflictError, match="is being deleted"):
            act(context, newer, actor=ADA)
    assert yard.operations()[0].task.read("task").paths == (f"{job_id}/a1/step-8",)
    yard.do(operation_id)
    assert list(yard.checkpoints(job_id)) == [older]
    with pytest.raises(NotFoundError):
        deletion.delete(context, newer, actor=ADA)


DENIED = OperationOutcome(outcome="failed", message="permission denied")


def fails(yard: Yard, operation_id: str) -> None:
    """Make a node claim a due operation, and fail it."""
    assert (operation_id, "node-1") in yard.give()
    yard.report(operation_id, fence=yard.claim(operation_id).fence, outcome=DENIED)


def test_a_deletion_that_failed_is_tried_again_until_it_succeeds(
    yard: Yard, context: Context
) -> None:
    job_id, (_, newer) = stopped(yard, 4, 8)
    operation_id = deletion.delete(context, newer, actor=RETENTION)
    since = context.now()
    for count, pause in enumerate((30, 60, 120), start=1):
        fails(yard, operation_id)
        shown = list_checkpoints(context, job_id, scope=SYSTEM_SCOPE)[0].not_deleted
        assert shown is not None
        assert (shown.count, shown.since, shown.reason) == (count, since, "permission denied")
        assert shown.next_at == context.now() + timedelta(seconds=pause)
        assert read_checkpoint(context, newer, scope=SYSTEM_SCOPE).not_deleted == shown
        assert yard.operation(operation_id).failing == shown
        yard.harness.clock.advance(pause - 1)
        assert yard.give() == []
        yard.harness.clock.advance(1)
    assert yard.kept(job_id) == ["a1.step-4"]
    yard.do(operation_id)
    assert newer not in yard.checkpoints(job_id)
    view = yard.operation(operation_id)
    assert (view.state, view.failing) == (OperationState.SUCCEEDED, None)


def test_a_person_has_a_failed_deletion_tried_at_once(yard: Yard, context: Context) -> None:
    job_id, (_, newer) = stopped(yard, 4, 8)
    operation_id = deletion.delete(context, newer, actor=ADA)
    fails(yard, operation_id)
    assert yard.give() == []
    assert deletion.delete(context, newer, actor=ADA) == operation_id
    yard.do(operation_id)
    assert newer not in yard.checkpoints(job_id)


def test_what_a_deleted_job_saved_is_tried_until_it_is_gone(yard: Yard, context: Context) -> None:
    job_id, _ = stopped(yard, 4, 8)
    (operation_id,) = delete_job(context, job_id, actor=ADA, checkpoints="delete")
    for pause in (30, 60, 120, 240, 480, 960, 1920, 3840, 7680, 15_360, 21_600, 21_600):
        fails(yard, operation_id)
        yard.harness.clock.advance(pause)
    yard.do(operation_id)
    assert yard.operation(operation_id).state == OperationState.SUCCEEDED


def test_a_deletion_whose_nodes_fall_silent_is_tried_again(yard: Yard, context: Context) -> None:
    _, (_, newer) = stopped(yard, 4, 8)
    operation_id = deletion.delete(context, newer, actor=RETENTION)
    for _ in range(MAX_TRIES):
        yard.give()
        yard.claim(operation_id)
        for _ in range(int(context.settings.lease_seconds * 1.1)):
            yard.harness.clock.advance(1)
            beat(context)
        yard.harness.keeper._judge(context.now())
    view = yard.operation(operation_id)
    assert view.state == OperationState.QUEUED
    assert view.failing is not None
    assert "node-1 has been silent" in view.failing.reason
    yard.harness.clock.advance(30)
    yard.do(operation_id)


def test_a_clock_that_is_set_back_delays_no_repeat(yard: Yard, context: Context) -> None:
    _, (_, newer) = stopped(yard, 4, 8)
    operation_id = deletion.delete(context, newer, actor=RETENTION)
    fails(yard, operation_id)
    yard.harness.clock.advance(-86_400)
    yard.do(operation_id)


def test_an_open_verification_is_taken_back(yard: Yard, context: Context) -> None:
    _, (_, newer) = stopped(yard, 4, 8)
    look = service.verify(context, newer, actor=ADA)
    yard.give()
    yard.claim(look)
    deletion.delete(context, newer, actor=ADA)
    assert yard.operation(look).state == OperationState.CANCELLED
    with pytest.raises(ConflictError, match="cancelled"):
        yard.report(look)


def test_a_pinned_one_stays_until_it_is_unpinned(yard: Yard, context: Context) -> None:
    job_id, (older, _) = stopped(yard, 4, 8)
    for _ in range(2):
        service.set_pin(context, older, pinned=True, actor=ADA)
    assert len(yard.said(job_id, "checkpoint_pinned")) == 1
    refused(context, older, "was pinned by ada; unpin it first")
    with pytest.raises(ConflictError, match="is pinned"):
        delete_job(context, job_id, actor=ADA, checkpoints="delete")
    service.set_pin(context, older, pinned=False, actor=ADA)
    deletion.delete(context, older, actor=ADA)


def test_one_that_is_being_loaded_stays_until_the_first_step(yard: Yard, context: Context) -> None:
    job_id, (older, _) = stopped(yard, 4, 8)
    resume(context, job_id, ResumeRequest(checkpoint_id=older), actor=ADA)
    refused(context, older, "is being loaded by an attempt")  # the launch is pending
    yard.harness.place()
    refused(context, older, "is being loaded by an attempt")
    (supervisor,) = yard.harness.claim_all(job_id)
    supervisor.train(4)
    refused(context, older, "is being loaded by an attempt")
    supervisor.train(5)
    deletion.delete(context, older, actor=ADA)


def test_one_that_another_job_needs_stays(yard: Yard, context: Context) -> None:
    source, (older, _) = stopped(yard, 4, 8)
    yard.harness.clock.advance(1)
    _, job_id = fork(context, older, ForkRequest(), actor=ADA)
    refused(context, older, "is being loaded by an attempt")  # the launch is pending
    yard.harness.place()
    (supervisor,) = yard.harness.claim_all(job_id)
    supervisor.train(12)
    refused(context, older, "tiny-fork was forked from .*step-4 and has saved no checkpoint")
    with pytest.raises(ConflictError, match=r"tiny-fork was forked from .*step-4"):
        delete_job(context, source, actor=ADA, checkpoints="keep")
    yard.harness.commit_checkpoint(job_id, 12)
    deletion.delete(context, older, actor=ADA)


def test_the_last_one_of_an_unfinished_job_stays(yard: Yard, context: Context) -> None:
    _, (older, newer) = stopped(yard, 4, 8)
    deletion.delete(context, older, actor=ADA)
    refused(context, newer, "is the last checkpoint of tiny, which is stopped; delete the job")


def test_a_damaged_one_may_go_and_counts_for_nothing(yard: Yard, context: Context) -> None:
    _, (older, newer) = stopped(yard, 4, 8)
    yard.do(service.verify(context, newer, actor=ADA), fault=CheckpointFault.FILE_SIZE)
    refused(context, older, "is the last checkpoint")
    deletion.delete(context, newer, actor=ADA)


def test_the_only_verified_one_stays(yard: Yard, context: Context) -> None:
    _, (older, newer) = stopped(yard, 4, 8)
    yard.do(service.verify(context, older, actor=ADA))
    refused(context, older, "the only verified checkpoint of tiny; verify another")
    yard.do(service.verify(context, newer, actor=ADA))
    deletion.delete(context, older, actor=ADA)


def test_all_of_a_finished_job_may_go(yard: Yard, context: Context) -> None:
    job_id, found = stopped(yard, 4, 8, outcome="succeeded")
    for checkpoint in found:
        deletion.delete(context, checkpoint, actor=ADA)
    assert yard.kept(job_id) == []


def test_a_resume_does_not_take_a_damaged_one(yard: Yard, context: Context) -> None:
    job_id, (_, newer) = stopped(yard, 4, 8)
    yard.do(service.verify(context, newer, actor=ADA), fault=CheckpointFault.FILE_DAMAGED)
    with pytest.raises(InvalidRequestError, match="is damaged: file_damaged: model-0"):
        resume(context, job_id, ResumeRequest(checkpoint_id=newer), actor=ADA)
    preview = resume(context, job_id, ResumeRequest(), actor=ADA)
    assert (preview.step, preview.branch) == (4, False)


def test_a_resume_does_not_take_a_damaged_one_without_a_record(
    yard: Yard, context: Context
) -> None:
    job_id, (_, newer) = stopped(yard, 4, 8)
    damaged = update(checkpoints).where(checkpoints.c.id == newer)
    with context.database.write() as connection:
        connection.execute(damaged.values(verified=False, verification=None))
    with pytest.raises(InvalidRequestError, match="is damaged: unknown"):
        resume(context, job_id, ResumeRequest(checkpoint_id=newer), actor=ADA)


def test_a_job_goes_with_its_checkpoints_and_its_operation_outlives_it(
    yard: Yard, context: Context
) -> None:
    job_id, (older, _) = stopped(yard, 4, 8)
    look = service.verify(context, older, actor=ADA)
    (operation_id,) = delete_job(context, job_id, actor=ADA, checkpoints="delete")
    with context.database.read() as connection:
        assert connection.scalars(select(jobs.c.id)).all() == []
        assert connection.scalars(select(checkpoints.c.id)).all() == []
    assert yard.operation(look).state == OperationState.CANCELLED
    task = yard.operations(id=operation_id)[0].task.read("task")
    assert (task.kind, task.whole_job) == (OperationKind.DELETE, True)
    assert task.paths == (f"{job_id}/a1/step-4", f"{job_id}/a1/step-8")
    yard.do(operation_id)
    view = yard.operation(operation_id)
    assert (view.state, view.job_name) == (OperationState.SUCCEEDED, "tiny")
    assert view.reason == "tiny was deleted"


def test_a_job_without_checkpoints_needs_no_operation(yard: Yard, context: Context) -> None:
    job_id, _ = stopped(yard)
    assert delete_job(context, job_id, actor=ADA, checkpoints="delete") == []

"""Cancelled operations, and deletion of old ended ones."""

from __future__ import annotations

import pytest

from server.core.context import Context
from server.core.errors import ConflictError
from server.jobs.checkpoints import deletion, service
from server.jobs.jobs.service import delete as delete_job
from server.jobs.jobs.service import stop
from server.jobs.operations.cancel import cancel, prune_ended
from tests.actors import ADA, EVE
from tests.server.yard import Yard
from trainyard.protocol.operations import OperationOutcome
from trainyard.protocol.states import OperationState


@pytest.fixture
def job(yard: Yard) -> str:
    """Id of a job that has ended, with checkpoints of steps 2 and 4."""
    job_id, (supervisor,) = yard.harness.running(step=4)
    yard.commit(job_id, 2, 4)
    stop(yard.harness.context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    return job_id


def test_one_that_waits_ends_at_once_and_may_be_asked_for_again(
    yard: Yard, context: Context, job: str
) -> None:
    operation = service.verify(context, f"{job}.a1.step-4", actor=ADA)
    cancel(context, operation, actor=EVE)
    assert yard.operation(operation).state == OperationState.CANCELLED
    assert yard.give() == []
    (said,) = yard.said(job, "operation_ended")
    assert said.message.endswith("cancelled: taken back by eve")
    with pytest.raises(ConflictError, match="has already ended: cancelled"):
        cancel(context, operation, actor=EVE)
    assert service.verify(context, f"{job}.a1.step-4", actor=ADA) != operation


def test_one_that_runs_hears_it_in_the_answer_to_its_report(
    yard: Yard, context: Context, job: str
) -> None:
    operation = service.verify(context, f"{job}.a1.step-4", actor=ADA)
    yard.give()
    yard.claim(operation)
    yard.report(operation, done=1)
    cancel(context, operation, actor=EVE)
    with pytest.raises(ConflictError, match="it is cancelled"):
        yard.report(operation, done=2)
    other = service.verify(context, f"{job}.a1.step-2", actor=ADA)
    assert yard.give() == [(other, "node-1")], "the node has no operation any more"


def test_a_deletion_is_taken_back_until_a_node_has_taken_it_on(
    yard: Yard, context: Context, job: str
) -> None:
    identifier = f"{job}.a1.step-2"
    cancel(context, deletion.delete(context, identifier, actor=ADA), actor=ADA)
    assert yard.kept(job) == ["a1.step-2", "a1.step-4"]
    operation = deletion.delete(context, identifier, actor=ADA)
    yard.give()
    yard.claim(operation)
    with pytest.raises(ConflictError, match="a node has begun to delete"):
        cancel(context, operation, actor=ADA)
    assert yard.kept(job) == ["a1.step-4"]


def test_a_deletion_that_failed_half_way_is_not_undone_by_taking_back_the_next_one(
    yard: Yard, context: Context, job: str
) -> None:
    identifier = f"{job}.a1.step-2"
    first = deletion.delete(context, identifier, actor=ADA)
    yard.give()
    yard.claim(first)
    yard.report(first, outcome=OperationOutcome(outcome="failed", message="the marker is gone"))
    yard.harness.clock.advance(31 * 86_400)
    assert prune_ended(context) == 0, "that it had begun must be known"
    again = deletion.delete(context, identifier, actor=ADA)
    with pytest.raises(ConflictError, match="a node has begun to delete"):
        cancel(context, again, actor=ADA)
    assert yard.kept(job) == ["a1.step-4"]


def test_files_of_a_deleted_job_are_not_forgotten(yard: Yard, context: Context, job: str) -> None:
    (operation,) = delete_job(context, job, actor=ADA, checkpoints="delete")
    with pytest.raises(ConflictError, match="no longer in the catalog"):
        cancel(context, operation, actor=ADA)


def test_what_ended_long_ago_is_forgotten(yard: Yard, context: Context, job: str) -> None:
    old = service.verify(context, f"{job}.a1.step-4", actor=ADA)
    cancel(context, old, actor=ADA)
    waiting = service.verify(context, f"{job}.a1.step-2", actor=ADA)
    yard.harness.clock.advance(30 * 86_400 - 1)
    assert prune_ended(context) == 0
    yard.harness.clock.advance(2)
    assert prune_ended(context) == 1
    assert [operation.id for operation in yard.operations()] == [waiting]

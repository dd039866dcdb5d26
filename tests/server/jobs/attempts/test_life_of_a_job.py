"""A job from submission to its end, through the services, on both databases."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text

from server.core.context import Context
from server.core.database.tables import events
from server.core.errors import ConflictError, NotFoundError, UnauthenticatedError
from server.jobs.jobs.service import cancel, stop
from tests.actors import ADA
from tests.server.claims import claim
from tests.server.harness import BRINGS_CODE, WORKER, Harness, Supervisor
from trainyard.protocol.states import AttemptOutcome, AttemptState, DesiredState, JobState
from trainyard.protocol.worker_messages import ClaimReply
from trainyard.run.directory import Phase
from trainyard.run.failures import FailureReason

TWO_NODES: dict[str, Any] = {"resources": {"world_size": 4, "nodes": 2}}


def test_a_job_succeeds(harness: Harness) -> None:
    harness.add_node()
    job_id = harness.submit()
    assert harness.job(job_id).state == JobState.QUEUED
    harness.place()
    assert harness.job(job_id).state == JobState.STARTING
    assert [m.node for m in harness.dispatcher.sent] == ["node-1"]
    (supervisor,) = harness.claim_all(job_id)
    assert harness.attempt(job_id).state == AttemptState.STARTING
    assert supervisor.report(phase=Phase.LOADING) == DesiredState.RUN
    assert harness.job(job_id).state == JobState.STARTING
    supervisor.train(1)
    job = harness.job(job_id)
    assert (job.state, job.progress.step, job.progress.phase) == ("running", 1, Phase.TRAINING)
    supervisor.train(100)
    supervisor.end("succeeded")
    job, attempt = harness.job(job_id), harness.attempt(job_id)
    assert (job.state, attempt.state, attempt.outcome) == ("succeeded", "ended", "succeeded")
    assert job.ended_at is not None
    assert attempt.last_step == 100
    assert harness.kinds(job_id) == [
        "submitted",
        "placed",
        "claimed",
        "running",
        "node_ended",
        "attempt_ended",
        "job_ended",
    ]


def test_the_text_of_a_failure_stands_in_one_event(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running(retry={"max_retries": 0})
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    with context.database.read() as connection:
        told = select(events.c.message).where(events.c.job_id == job_id).order_by(events.c.id)
        *_, share, attempt, job = connection.scalars(told)
    assert share == "the share of node-1 failed: trainer_error"
    assert attempt == "Attempt 1 failed at step 1: trainer_error"
    assert ": trainer_error: trainer_error on node-1" in job


@BRINGS_CODE
def test_the_claim_carries_the_whole_spec_and_no_roots(harness: Harness) -> None:
    harness.add_node()
    _, (supervisor,) = harness.launched(env={"WANDB_API_KEY": "real"})
    reply = supervisor.reply
    assert reply.spec.env == {"WANDB_API_KEY": "real"}
    assert reply.attempt.roots == {}
    assert (reply.rendezvous, reply.addresses) == ("127.0.0.1:0", ())
    assert reply.attempt.resume is None
    assert [share.slots for share in reply.attempt.allocation] == [(0,)]


def test_several_nodes_meet_at_the_first_one(harness: Harness) -> None:
    harness.add_node("a", slots=2)
    harness.add_node("b", slots=2)
    _, supervisors = harness.launched(**TWO_NODES)
    meetings = {s.reply.rendezvous for s in supervisors}
    assert len(meetings) == 1
    address, port = meetings.pop().split(":")
    assert address == "a.test"
    assert 21_000 <= int(port) < 29_000, "32,768 and more are given to outgoing connections"
    assert {s.reply.addresses for s in supervisors} == {("a.test", "b.test")}
    assert [s.reply.node_rank for s in supervisors] == [0, 1]


def test_a_second_claim_is_refused(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id, _ = harness.launched()
    with pytest.raises(ConflictError, match="claimed"):
        claim(context, harness.attempt(job_id).id, node="node-1", worker=WORKER)


def test_a_claim_is_repeated_with_its_secret_while_its_share_is_held(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.launched()
    attempt_id = harness.attempt(job_id).id
    secret = supervisor.reply.attempt_token.removeprefix("ty_attempt_")

    def repeat(secret: str | None = secret) -> ClaimReply:
        return claim(context, attempt_id, node="node-1", worker=WORKER, secret=secret)

    before = harness.dump()
    assert repeat() == supervisor.reply
    assert harness.dump() == before
    for other in (secret[::-1], None):
        with pytest.raises(ConflictError, match="claimed"):
            repeat(other)
    supervisor.train()
    before = harness.dump()
    assert repeat() == supervisor.reply  # a late repeat
    assert harness.dump() == before
    supervisor.end("succeeded")
    with pytest.raises(ConflictError, match="ended"):
        repeat()


def test_a_repeated_claim_is_granted_to_an_attempt_that_is_to_stop(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.launched()
    secret = supervisor.reply.attempt_token.removeprefix("ty_attempt_")
    stop(context, job_id, actor=ADA, reason="")
    attempt_id = harness.attempt(job_id).id
    repeated = claim(context, attempt_id, node="node-1", worker=WORKER, secret=secret)
    assert repeated == supervisor.reply  # its supervisor gets the order, and ends the share


def test_only_a_node_of_the_attempt_may_claim(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id = harness.submit()
    harness.place()
    with pytest.raises(NotFoundError):
        claim(context, harness.attempt(job_id).id, node="node-2", worker=WORKER)
    with pytest.raises(NotFoundError):
        claim(context, "nothing", node="node-1", worker=WORKER)


def test_reports_need_the_attempts_own_token(harness: Harness) -> None:
    harness.add_node()
    _, (supervisor,) = harness.launched()
    supervisor.reply = supervisor.reply.model_copy(update={"attempt_token": "ty_attempt_forged"})
    with pytest.raises(UnauthenticatedError):
        supervisor.train()


def test_a_second_supervisor_is_refused(harness: Harness) -> None:
    harness.add_node()
    _, (supervisor,) = harness.launched()
    supervisor.train()
    supervisor.identity = supervisor.identity.model_copy(update={"pid": 999})
    with pytest.raises(ConflictError, match="another supervisor"):
        supervisor.train()


def test_a_report_after_the_end_changes_nothing_and_is_answered_with_cancel(
    harness: Harness,
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running()
    supervisor.end("succeeded")
    before = harness.job(job_id), harness.kinds(job_id)
    assert supervisor.train(2) == DesiredState.CANCEL
    assert (harness.job(job_id), harness.kinds(job_id)) == before


def test_stop_is_a_level_and_may_be_repeated(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running()
    stop(context, job_id, actor=ADA, reason="enough")
    stop(context, job_id, actor=ADA, reason="enough")
    assert harness.job(job_id).state == JobState.STOPPING
    assert supervisor.train(2) == DesiredState.STOP
    assert supervisor.train(3) == DesiredState.STOP
    supervisor.end("stopped")
    assert harness.job(job_id).state == JobState.STOPPED
    assert harness.kinds(job_id).count("stop_requested") == 1
    with pytest.raises(ConflictError, match="has already ended: stopped"):
        stop(context, job_id, actor=ADA, reason="")


def test_a_stop_that_finds_the_end_is_a_success(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running()
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("succeeded")
    assert harness.job(job_id).state == JobState.SUCCEEDED


def test_cancel_may_follow_stop_and_never_the_other_way(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running()
    stop(context, job_id, actor=ADA, reason="")
    cancel(context, job_id, actor=ADA, reason="")
    with pytest.raises(ConflictError, match="being cancelled"):
        stop(context, job_id, actor=ADA, reason="")
    assert supervisor.train(2) == DesiredState.CANCEL
    supervisor.end("cancelled")
    assert harness.job(job_id).state == JobState.CANCELLED


def test_cancel_names_the_lost_steps(harness: Harness, context: Context) -> None:
    harness.add_node()
    queued = harness.submit(resources={"world_size": 4})
    assert cancel(context, queued, actor=ADA, reason="").startswith("nothing")
    job_id, (supervisor,) = harness.running()
    supervisor.train(30)
    assert "30 steps since the start" in cancel(context, job_id, actor=ADA, reason="")
    harness.commit_checkpoint(job_id, 20)
    assert cancel(context, job_id, actor=ADA, reason="") == "10 steps since step-20"


@pytest.mark.parametrize(("verb", "state"), [(stop, "stopped"), (cancel, "cancelled")])
def test_a_queued_job_ends_at_once(
    harness: Harness, context: Context, verb: object, state: str
) -> None:
    job_id = harness.submit()
    assert callable(verb)
    verb(context, job_id, actor=ADA, reason="")
    assert harness.job(job_id).state == state


def test_an_unclaimed_attempt_ends_at_once(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id = harness.submit()
    harness.place()
    stop(context, job_id, actor=ADA, reason="")
    assert harness.job(job_id).state == JobState.STOPPED
    assert harness.attempt(job_id).outcome == AttemptOutcome.STOPPED
    with pytest.raises(ConflictError):
        claim(context, harness.attempt(job_id).id, node="node-1", worker=WORKER)
    assert harness.place() == 0


def test_a_stop_while_a_share_is_unclaimed_cancels_the_others(
    harness: Harness, context: Context
) -> None:
    harness.add_node("a", slots=2)
    harness.add_node("b", slots=2)
    job_id = harness.submit(**TWO_NODES)
    harness.place()
    first = Supervisor(harness, harness.attempt(job_id).id, node="a")
    stop(context, job_id, actor=ADA, reason="")
    assert first.report() == DesiredState.CANCEL
    first.end("cancelled")
    assert harness.job(job_id).state == JobState.STOPPED


def test_the_first_node_that_fails_orders_the_others_to_end(harness: Harness) -> None:
    harness.add_node("a", slots=2)
    harness.add_node("b", slots=2)
    job_id, (first, second) = harness.running(**TWO_NODES, retry={"max_retries": 0})
    second.end("failed", FailureReason.OUT_OF_MEMORY)
    attempt = harness.attempt(job_id)
    assert (attempt.state, attempt.failure.node) == ("stopping", "b")
    assert harness.job(job_id).state == JobState.RUNNING
    assert first.train(2) == DesiredState.CANCEL
    first.end("failed", FailureReason.TRAINER_ERROR)
    attempt, job = harness.attempt(job_id), harness.job(job_id)
    assert attempt.failure.reason == FailureReason.OUT_OF_MEMORY
    assert job.state == JobState.FAILED
    assert "micro_batch_size" in job.reason


def test_all_nodes_must_succeed(harness: Harness) -> None:
    harness.add_node("a", slots=2)
    harness.add_node("b", slots=2)
    job_id, (first, second) = harness.running(**TWO_NODES)
    first.end("succeeded")
    assert harness.job(job_id).state == JobState.RUNNING
    second.end("succeeded")
    assert harness.job(job_id).state == JobState.SUCCEEDED


def test_a_failure_is_retried_with_backoff_until_the_budget_is_spent(harness: Harness) -> None:
    harness.add_node()
    job_id, supervisors = harness.running(retry={"max_retries": 2, "backoff_seconds": 5})
    waits = []
    for _ in range(2):
        supervisors[0].end("failed", FailureReason.TRAINER_ERROR)
        job = harness.job(job_id)
        assert job.state == JobState.QUEUED
        waits.append((job.not_before - harness.clock.now()).total_seconds())
        assert harness.place() == 0, "it waits"
        harness.clock.advance(waits[-1])
        assert harness.place() == 1
        supervisors = harness.claim_all(job_id)
    supervisors[0].end("failed", FailureReason.TRAINER_ERROR)
    assert harness.job(job_id).state == JobState.FAILED
    assert waits == [5, 10]
    assert harness.attempt(job_id).number == 3


def test_lost_nodes_do_not_use_up_the_budget(harness: Harness) -> None:
    harness.add_node()
    job_id, supervisors = harness.running(retry={"max_retries": 0, "backoff_seconds": 0})
    supervisors[0].end("failed", FailureReason.PREEMPTED)
    assert harness.job(job_id).state == JobState.QUEUED
    assert harness.job(job_id).retries_used == 0


def test_only_put_backs_in_a_row_wait_longer(harness: Harness) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running(retry={"max_retries": 1, "backoff_seconds": 0})
    waits = []
    for put_back in [True] * 6 + [False] + [True] * 2:
        supervisor.end("failed", FailureReason.LAUNCH_ERROR, free_retry=put_back)
        job = harness.job(job_id)
        pause = job.not_before - harness.clock.now() if job.not_before else timedelta()
        waits.append(pause.total_seconds())
        harness.clock.advance(waits[-1])
        assert harness.place() == 1
        (supervisor,) = harness.claim_all(job_id)
    assert waits == [1, 1, 1, 1, 1, 2, 0, 1, 1]
    assert harness.job(job_id).retries_used == 1


@pytest.mark.parametrize(("free_retry", "wait"), [("true", 2), ("false", 1), ("null", 1)])
def test_put_backs_that_a_later_version_recorded_end_no_job(
    harness: Harness, context: Context, free_retry: str, wait: int
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.launched()
    for _ in range(5):
        supervisor.end("failed", FailureReason.LAUNCH_ERROR, free_retry=True)
        harness.clock.advance(1)
        assert harness.place() == 1
        (supervisor,) = harness.claim_all(job_id)
    later = '{"reason": "of_a_later_version", "free_retry": ' + free_retry + "}"
    with context.database.write() as connection:
        fourth = "UPDATE attempts SET failure = :later WHERE number = 4"
        connection.execute(text(fourth), {"later": later})
    supervisor.end("failed", FailureReason.LAUNCH_ERROR, free_retry=True)
    job = harness.job(job_id)
    assert job.state == JobState.QUEUED
    assert job.not_before == harness.clock.now() + timedelta(seconds=wait)


def test_a_retry_goes_on_from_the_newest_checkpoint_of_its_lineage(harness: Harness) -> None:
    harness.add_node()
    job_id, (first,) = harness.running(retry={"backoff_seconds": 0})
    harness.commit_checkpoint(job_id, 10)
    newest = harness.commit_checkpoint(job_id, 20)
    first.end("failed", FailureReason.HANG)
    harness.place()
    (second,) = harness.claim_all(job_id)
    resume = second.reply.attempt.resume
    assert resume is not None
    assert (resume.checkpoint_id, resume.step) == (newest, 20)
    second.report(phase=Phase.STARTING)  # the trainer has not loaded anything yet
    assert harness.job(job_id).progress.step == 20
    second.end("failed", FailureReason.HANG)  # before its first save
    harness.place()
    assert harness.attempt(job_id).parent_checkpoint_id == newest


def test_a_stop_without_a_request_counts_as_preempted(harness: Harness) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running()
    supervisor.end("stopped")
    assert harness.attempt(job_id).failure.reason == FailureReason.PREEMPTED
    assert harness.job(job_id).state == JobState.QUEUED


def test_an_attempt_of_a_job_of_a_later_version_fails_without_a_retry(harness: Harness) -> None:
    harness.add_node("a", slots=1)
    job_id, (supervisor,) = harness.running()
    harness.spoil_spec(job_id)
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    job = harness.job(job_id)
    assert job.state == JobState.FAILED
    message = "trainer_error: trainer_error on a; "
    assert job.reason.startswith(f"{message}the stored spec of job {job_id} cannot be read: ")

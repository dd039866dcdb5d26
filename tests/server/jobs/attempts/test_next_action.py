"""The next action after a failure: never one that would fail in the same way."""

from __future__ import annotations

from typing import Any

import pytest

from server.core.context import Context
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.next_action import of_program, resume_with
from server.jobs.attempts.retry_policy import OVER_TIME
from server.jobs.jobs.fork import fork
from server.jobs.jobs.queries import job_view
from tests.actors import ADA
from tests.server.harness import Harness, Supervisor
from trainyard.protocol.rest.checkpoints import ForkRequest
from trainyard.protocol.rest.jobs import NextAction
from trainyard.run.failures import Failure, FailureReason
from trainyard.spec.job import parse_job_spec

LOGGED: dict[str, Any] = {"training": {"log_every_steps": 1}}
PACK = f"sha256:{'a' * 64}"


@pytest.fixture
def node(harness: Harness) -> str:
    return harness.add_node(slots=8)


def failed(
    harness: Harness,
    context: Context,
    *,
    reason: FailureReason = FailureReason.NON_FINITE_LOSS,
    saved: tuple[int, ...] = (0,),
    step: int = 45,
    **sections: Any,
) -> NextAction | None:
    """Return the next action of a job that saved at these steps and failed at another."""
    job_id, (supervisor,) = harness.running(**{"retry": {"max_retries": 0}} | sections)
    return ended(
        harness,
        context,
        job_id=job_id,
        supervisor=supervisor,
        reason=reason,
        saved=saved,
        step=step,
    )


def ended(
    harness: Harness,
    context: Context,
    *,
    job_id: str,
    supervisor: Supervisor,
    reason: FailureReason,
    saved: tuple[int, ...],
    step: int,
) -> NextAction | None:
    for each in saved:
        harness.commit_checkpoint(job_id, each)
    supervisor.end("failed", reason, step=step)
    return job_view(context, job_id, scope=SYSTEM_SCOPE).next_action


@pytest.mark.usefixtures("node")
def test_a_rate_of_100_is_no_reason_to_resume(harness: Harness, context: Context) -> None:
    action = failed(harness, context, optimizer={"lr": 100.0}, step=5)
    assert action is not None
    assert (action.verb, action.field, action.setting) == (
        "submit", "optimizer.lr", "optimizer.lr=50",
    )  # fmt: skip
    assert "ends in the same way" in action.text
    assert "No checkpoint lies between step 0 and the failure" in action.text


@pytest.mark.usefixtures("node")
def test_the_newest_checkpoint_from_before_the_failure_is_forked(
    harness: Harness, context: Context
) -> None:
    action = failed(harness, context, saved=(20, 40, 44, 50))
    assert action is not None
    assert (action.verb, action.step, action.setting) == ("fork", 40, "optimizer.lr=0.00015")
    assert str(action.checkpoint_id).endswith(".a1.step-40")


@pytest.mark.usefixtures("node")
def test_a_spike_is_forked_where_the_guard_sees_it_again(
    harness: Harness, context: Context
) -> None:
    spike = FailureReason.LOSS_SPIKE
    action = failed(harness, context, reason=spike, saved=(10, 30), step=45, **LOGGED)
    assert action is not None
    assert action.step == 30
    action = failed(harness, context, reason=spike, saved=(10, 38), step=45, **LOGGED)
    assert action is not None
    assert action.step == 10, "after step 38 the guard reads its first losses when the spike comes"
    off = {"preflight": False}
    action = failed(harness, context, reason=spike, saved=(10,), step=45, checkpoint=off, **LOGGED)
    assert action is not None
    assert action.field == "optimizer.lr", "the fork would have nothing to go back to"


@pytest.mark.usefixtures("node")
def test_a_spike_is_rolled_back_and_one_after_rollbacks_gets_another_rate(
    harness: Harness, context: Context
) -> None:
    spike = FailureReason.LOSS_SPIKE
    action = failed(harness, context, reason=spike, saved=(30,), **LOGGED)
    assert action is not None
    assert action.setting == "guard.loss_spike=rollback"
    guard = {"loss_spike": "rollback"}
    action = failed(harness, context, reason=spike, saved=(30,), guard=guard, **LOGGED)
    assert action is not None
    assert action.setting == "optimizer.lr=0.00015", "the guard is as it would be"


@pytest.mark.usefixtures("node")
def test_a_fork_that_saved_what_it_loaded_is_forked_again(
    harness: Harness, context: Context
) -> None:
    job_id, (first,) = harness.running()
    origin = harness.commit_checkpoint(job_id, 40)
    first.end("failed", FailureReason.DATA_ERROR)
    request = ForkRequest.model_validate(
        {"parts": ["model"], "changes": {"retry": {"max_retries": 0}}}
    )
    _, forked = fork(context, origin, request, actor=ADA)
    harness.place()
    (supervisor,) = harness.claim_all(forked)
    reason = FailureReason.NON_FINITE_LOSS
    action = ended(
        harness, context, job_id=forked, supervisor=supervisor, reason=reason, saved=(0,), step=3
    )
    assert action is not None
    assert (action.verb, action.step) == ("fork", 0), "a new job would lose the weights"


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("reason", "aim"),
    [
        (FailureReason.OUT_OF_MEMORY, "memory"),
        (FailureReason.NODE_LOST, "free"),
        (FailureReason.DATA_ERROR, None),
        (FailureReason.TRAINER_ERROR, None),
    ],
)
def test_what_a_resume_may_mend_is_resumed(
    harness: Harness, context: Context, reason: FailureReason, aim: str | None
) -> None:
    action = failed(harness, context, reason=reason, retry={"max_retries": 0, "on": []})
    assert action is not None
    assert (action.verb, action.aim) == ("resume", aim)


@pytest.mark.parametrize(
    ("reason", "code", "verb", "field"),
    [
        (FailureReason.PROGRAM_ERROR, {"pack": PACK}, "submit", "program."),
        (FailureReason.PROGRAM_START_ERROR, {"pack": PACK}, "submit", "program."),
        (FailureReason.PROGRAM_ERROR, {"folder": "data:project"}, "resume", None),
        (FailureReason.PROGRAM_START_ERROR, {"folder": "data:project"}, "resume", "program."),
        (FailureReason.NON_FINITE_LOSS, {"folder": "data:project"}, "submit", "program.arguments"),
        (FailureReason.HANG, {"pack": PACK}, "resume", None),
    ],
)
def test_packed_code_and_the_steps_of_a_program_stay_as_they_are(
    reason: FailureReason, code: dict[str, str], verb: str, field: str | None
) -> None:
    spec = parse_job_spec({"program": {"command": ["python", "train.py"], "code": code}})
    action = of_program(spec, Failure(reason=reason, message="it ended"))
    assert (action.verb, action.field) == (verb, field)


def test_an_attempt_that_its_bound_ended_resumes_with_a_longer_one() -> None:
    spec = parse_job_spec({"resources": {"max_runtime_seconds": 600}})
    failure = Failure(reason=FailureReason.PREEMPTED, message="600 s are over", remedy=OVER_TIME)
    action = resume_with(spec, failure)
    assert (action.verb, action.setting) == ("resume", "resources.max_runtime_seconds=1200")

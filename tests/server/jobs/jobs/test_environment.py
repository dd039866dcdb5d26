"""Variables of jobs without code: refused by every endpoint, and before each launch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from server.core.context import Context
from server.core.database.tables import jobs
from server.core.errors import InvalidRequestError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs import fork, resume
from server.jobs.jobs.planning import plan_job
from server.jobs.jobs.queries import job_view
from server.jobs.jobs.service import stop
from tests.actors import ADA, EVE
from tests.exploits import BAD_VALUES, COUSINS, shell_by_warnings
from tests.server.harness import BRINGS_CODE, Harness
from tests.server.submit import submit
from trainyard.protocol.rest.checkpoints import ForkRequest
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.run.failures import FailureReason
from trainyard.spec.job import parse_job_spec

EXPLOIT = shell_by_warnings("id")
NAMED = ["/env/PYTHONWARNINGS", "/env/BROWSER"]


def store_env(harness: Harness, job_id: str, env: dict[str, str]) -> None:
    """Give a stored job an environment that was legal when it was submitted."""
    sealed = harness.context.secrets.seal(env)
    with harness.context.database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(env=sealed))


def pointers(refusal: pytest.ExceptionInfo[InvalidRequestError]) -> list[str]:
    return [problem.pointer for problem in refusal.value.problems]


def test_a_submission_and_a_plan_are_refused_by_name(context: Context) -> None:
    environments = [EXPLOIT | dict(COUSINS), *({name: value} for name, value in BAD_VALUES)]
    for env in environments:
        wanted = parse_job_spec({"env": {"NCCL_DEBUG": "INFO"} | env})
        with pytest.raises(InvalidRequestError) as submitted:
            submit(context, wanted, actor=ADA)
        with pytest.raises(InvalidRequestError) as planned:
            plan_job(context, wanted, actor=ADA)
        assert pointers(submitted) == pointers(planned)
        assert {*pointers(submitted)} == {f"/env/{name}" for name in env}


@BRINGS_CODE
def test_code_sets_what_it_likes(context: Context, harness: Harness) -> None:
    harness.add_node()
    job_id = submit(context, parse_job_spec({"env": EXPLOIT}), actor=ADA).id
    assert harness.place() == 1
    assert harness.claim_all(job_id)[0].reply.spec.env == EXPLOIT


def test_a_fork_is_refused_whether_it_brings_or_inherits_it(
    context: Context, harness: Harness
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running(step=9)
    checkpoint = harness.commit_checkpoint(job_id, 4)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    wanted = ForkRequest.model_validate_json('{"changes": {"env": {"CC": "/tmp/cc"}}}')
    with pytest.raises(InvalidRequestError) as refusal:
        fork.fork(context, checkpoint, wanted, actor=EVE)
    assert pointers(refusal) == ["/changes/env/CC"]
    store_env(harness, job_id, EXPLOIT)
    with pytest.raises(InvalidRequestError) as refusal:
        fork.fork(context, checkpoint, ForkRequest(), actor=ADA)
    assert pointers(refusal) == [f"/changes{pointer}" for pointer in NAMED]


def test_a_stored_job_stays_readable_and_its_resume_is_refused_by_name(
    context: Context, harness: Harness
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running(step=9)
    harness.commit_checkpoint(job_id, 4)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    store_env(harness, job_id, EXPLOIT)
    assert set(job_view(context, job_id, scope=SYSTEM_SCOPE).spec.env) == set(EXPLOIT)
    for dry_run in (True, False):
        with pytest.raises(InvalidRequestError) as refusal:
            resume.resume(context, job_id, ResumeRequest(dry_run=dry_run), actor=ADA)
        assert pointers(refusal) == NAMED
    assert resume.options(context, job_id, scope=SYSTEM_SCOPE).options


def test_a_retry_of_a_stored_job_ends_it_with_reason_and_remedy(harness: Harness) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running(step=9)
    store_env(harness, job_id, EXPLOIT)
    supervisor.end("failed", FailureReason.HANG)
    harness.clock.advance(60)
    assert (harness.place(), harness.job(job_id).state) == (1, "failed")
    job = harness.job(job_id)
    assert job.reason.startswith("not_allowed: env.PYTHONWARNINGS: PYTHONWARNINGS is legal only")
    assert "env.BROWSER" in job.reason
    assert "Submit a new job without the fields in the message" in job.reason
    assert (job.attempt, job.pending, job.ended_at is None) == (1, None, False)
    assert harness.kinds(job_id)[-1] == "job_ended"
    assert harness.place() == 0


def test_a_refusal_by_the_node_is_not_tried_again(context: Context, harness: Harness) -> None:
    settings = context.settings.model_copy(update={"allow_code": True})
    allowing = Harness(replace(context, settings=settings), harness.clock)
    allowing.add_node()
    job_id, (supervisor,) = allowing.launched(env=EXPLOIT)
    supervisor.end("failed", FailureReason.NOT_ALLOWED)
    job = allowing.job(job_id)
    assert (job.state, job.retries_used) == ("failed", 0)
    assert "TRAINYARD_ALLOW_CODE=true" in job.reason

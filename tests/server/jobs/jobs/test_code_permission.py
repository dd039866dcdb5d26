"""`code:run`: a resume or fork of a job that brings code is refused before anything is stored."""

from __future__ import annotations

import pytest

from server.core.context import Context
from server.core.errors import ForbiddenError
from server.jobs.jobs.fork import fork
from server.jobs.jobs.fork import preview as preview_fork
from server.jobs.jobs.planning import plan_job
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import stop
from server.jobs.jobs.submission import SubmittedSpec, submit_all
from tests.actors import ADA, limited_to
from tests.server.harness import BRINGS_CODE, Harness
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.checkpoints import ForkRequest
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.spec.job import parse_job_spec

VARIABLE = {"HF_HOME": "/data/hub"}
WRITER = limited_to(ADA, Permission.JOBS_READ, Permission.JOBS_WRITE)
CODER = limited_to(WRITER, *Permission)

pytestmark = BRINGS_CODE


def stopped(context: Context, harness: Harness) -> tuple[str, str]:
    """Return a stopped job whose environment runs code, and its checkpoint."""
    harness.add_node()
    job_id, (supervisor,) = harness.running(step=9, env=VARIABLE)
    checkpoint = harness.commit_checkpoint(job_id, 4)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    return job_id, checkpoint


def test_a_resume_of_a_job_that_brings_code(context: Context, harness: Harness) -> None:
    job_id, _ = stopped(context, harness)
    before = harness.dump()
    with pytest.raises(ForbiddenError, match="needs code:run, because of /env/HF_HOME; ") as found:
        resume(context, job_id, ResumeRequest(), actor=WRITER)
    assert [each.pointer for each in found.value.problems] == ["/env/HF_HOME"]
    assert "'ada' has jobs:read, jobs:write" in found.value.detail
    assert harness.dump() == before
    resume(context, job_id, ResumeRequest(dry_run=True), actor=WRITER)
    resume(context, job_id, ResumeRequest(), actor=CODER)
    assert harness.job(job_id).state == "queued"


def test_a_fork_that_inherits_or_brings_code(context: Context, harness: Harness) -> None:
    _, checkpoint = stopped(context, harness)
    before = harness.dump()
    with pytest.raises(ForbiddenError, match="needs code:run, because of /changes/env/HF_HOME; "):
        fork(context, checkpoint, ForkRequest(), actor=WRITER, idempotency_key="once")
    assert harness.dump() == before
    preview_fork(context, checkpoint, ForkRequest(), actor=WRITER)
    without = ForkRequest(changes={"env": {"HF_HOME": None}})
    fork(context, checkpoint, without, actor=WRITER)
    fork(context, checkpoint, ForkRequest(), actor=CODER, idempotency_key="once")


def test_submissions_are_refused_one_by_one(context: Context, harness: Harness) -> None:
    del harness
    plain, code = parse_job_spec({}), parse_job_spec({"env": VARIABLE})
    given = [SubmittedSpec(code, WRITER), SubmittedSpec(plain, WRITER), SubmittedSpec(code, CODER)]
    refused, *stored = submit_all(context, given)
    assert isinstance(refused, ForbiddenError)
    assert not any(isinstance(each, Exception) for each in stored)
    plan_job(context, code, actor=ADA)

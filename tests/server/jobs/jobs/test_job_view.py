"""The view of one job: values computed from its attempts."""

from __future__ import annotations

from server.core.context import Context
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.queries import job_view
from server.jobs.jobs.resume import resume
from tests.actors import ADA
from tests.server.harness import Harness
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.run.failures import FailureReason


def test_pauses_between_attempts_are_no_part_of_the_time_that_a_job_took(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    job_id, (first,) = harness.running()
    harness.commit_checkpoint(job_id, 1)
    assert job_view(context, job_id, scope=SYSTEM_SCOPE).active_seconds is None
    harness.clock.advance(30)
    first.end("failed", FailureReason.DATA_ERROR)
    harness.clock.advance(3600)  # a night
    resume(context, job_id, ResumeRequest(), actor=ADA)
    harness.place()
    (second,) = harness.claim_all(job_id)
    harness.clock.advance(12)
    second.end("succeeded")
    found = job_view(context, job_id, scope=SYSTEM_SCOPE).active_seconds
    assert found is not None
    assert 42 <= found < 60

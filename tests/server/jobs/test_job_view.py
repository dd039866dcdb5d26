"""The view of a job: its effective spec, and how it differs from the submitted one."""

from __future__ import annotations

from server.attempts.launch import effective_spec
from server.context import Context
from server.jobs.queries import job_view
from server.jobs.resume import resume
from server.jobs.service import cancel
from tests.actors import ADA
from tests.server.harness import Harness
from trainyard.protocol.rest.resume import ResumeRequest


def test_the_view_of_a_job_has_its_effective_spec_and_what_differs(
    context: Context, harness: Harness
) -> None:
    harness.add_node(slots=4)
    job_id = harness.submit(resources={"world_size": 2})
    waiting = job_view(context, job_id)
    assert waiting.changes == ()
    assert waiting.set_fields == ("name", "resources.world_size")
    harness.place()
    (supervisor,) = harness.claim_all(job_id)
    placed = job_view(context, job_id)
    attempt = placed.current_attempt
    assert attempt is not None
    assert attempt.changes == ()
    assert {change.field: change.after for change in placed.changes} == attempt.auto
    with context.database.read() as connection:
        assert placed.effective_spec == effective_spec(connection, attempt.id)
    cancel(context, job_id, actor=ADA, reason="")
    supervisor.end("cancelled")
    overrides = {"cpu_offload": True, "retry": {"max_retries": 7}}
    request = ResumeRequest.model_validate({"world_size": 4, "steps": 200, "overrides": overrides})
    resume(context, job_id, request, actor=ADA)
    pending = job_view(context, job_id)
    assert {change.field: (change.before, change.after) for change in pending.changes} == {
        "training.steps": (100, 200),
        "optimizer.cpu_offload": (False, True),
        "resources.world_size": (2, 4),
        "retry.max_retries": (waiting.spec.retry.max_retries, 7),
    }
    assert (pending.effective_spec.retry.max_retries, pending.retries_left) == (7, 7)
    harness.place()
    placed = job_view(context, job_id)
    assert placed.current_attempt is not None
    assert placed.current_attempt.changes == pending.changes
    assert set(pending.changes) < set(placed.changes), "and the values of `auto`"

"""An attempt that gives up its slots for another job or a drain."""

from __future__ import annotations

from server.core.visibility.job_labels import plain
from server.core.visibility.scope import SYSTEM_SCOPE
from tests.server.harness import Harness, Supervisor
from trainyard.protocol.states import DesiredState, JobState
from trainyard.run.failures import FailureReason


def leaves(harness: Harness, job_id: str, supervisor: Supervisor, *, reason: str) -> str:
    """Follow the order to leave of a continuing job; return its saved checkpoint.

    The job is queued again immediately, and no retry is used.
    """
    job = harness.job(job_id)
    assert (job.state, job.desired) == (JobState.STOPPING, DesiredState.RUN)
    assert job.reason == reason
    assert supervisor.train(7) == DesiredState.STOP
    saved = harness.commit_checkpoint(job_id, 8)
    supervisor.end("stopped")
    attempt, job = harness.attempt(job_id), harness.job(job_id)
    assert (attempt.outcome, attempt.failure.reason) == ("failed", FailureReason.PREEMPTED)
    assert plain(attempt.failure.message, SYSTEM_SCOPE) == reason
    assert (job.state, job.retries_used, job.not_before) == (JobState.QUEUED, 0, None)
    return saved

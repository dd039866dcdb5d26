"""How an attempt ended, and what follows for its job: pure decisions (docs/lifecycle.md, 20-27)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specs.api.jobs import PendingLaunch
from specs.failures import ADVICE, FREE_RETRIES, NEVER_RETRIED, Failure, FailureReason
from specs.sections.operation import RetrySection
from specs.states import AttemptOutcome, DesiredState, JobState

LONGEST_BACKOFF_SECONDS = 600.0


@dataclass(frozen=True)
class NodeEnd:
    """How one node's share ended."""

    node: str
    outcome: AttemptOutcome
    failure: Failure | None


@dataclass(frozen=True)
class FollowUp:
    """What an attempt's end makes of its job."""

    state: JobState
    reason: str | None = None
    pending: PendingLaunch | None = None
    """Launch that follows; only with `queued`."""
    delay_seconds: float = 0.0
    """Wait before it."""
    uses_retry: bool = False
    """Whether the retry budget shrinks."""


def verdict(
    ends: Sequence[NodeEnd], *, first_failure: Failure | None, desired: DesiredState
) -> tuple[AttemptOutcome, Failure | None]:
    """Return how an attempt ended whose nodes all have.

    What happened counts, not what was asked for: a stop that finds the training finished is a
    success. A lost node is the cause of the failures that its peers report.

    Args:
        ends: how each node ended.
        first_failure: what failed the attempt, by the time at which the server heard of it.
        desired: what a person wants of the job.
    """
    failures = [end.failure for end in ends if end.failure is not None]
    lost = next((f for f in failures if f.reason == FailureReason.NODE_LOST), None)
    failure = lost or first_failure
    if failure is not None:
        return AttemptOutcome.FAILED, failure
    outcomes = {end.outcome for end in ends}
    if outcomes == {AttemptOutcome.SUCCEEDED}:
        return AttemptOutcome.SUCCEEDED, None
    if desired == DesiredState.RUN:  # a drain, or a notice that the machine goes away
        nodes = ", ".join(e.node for e in ends if e.outcome != AttemptOutcome.SUCCEEDED)
        message = f"{nodes} ended the training although nobody had asked for it"
        return AttemptOutcome.FAILED, Failure(reason=FailureReason.PREEMPTED, message=message)
    if AttemptOutcome.CANCELLED in outcomes and desired == DesiredState.CANCEL:
        return AttemptOutcome.CANCELLED, None
    return AttemptOutcome.STOPPED, None


def follow_up(
    outcome: AttemptOutcome,
    failure: Failure | None,
    *,
    desired: DesiredState,
    resize: PendingLaunch | None,
    again: PendingLaunch,
    retry: RetrySection,
    retries_used: int,
    failures_in_a_row: int,
) -> FollowUp:
    """Return what becomes of the job.

    Args:
        outcome: how the attempt ended.
        failure: why it failed.
        desired: what a person wants of the job.
        resize: launch that was asked for while the attempt ran.
        again: launch of the same once more.
        retry: the rules for retries.
        retries_used: failures that used up the budget since a person last started the job.
        failures_in_a_row: failures since then, this one included.
    """
    if outcome == AttemptOutcome.STOPPED and resize is not None:
        return FollowUp(JobState.QUEUED, reason="waits for its new size", pending=resize)
    if failure is None:
        return FollowUp(JobState(outcome.value))
    what = f"{failure.reason}: {failure.message}"
    if desired != DesiredState.RUN and resize is None:
        return FollowUp(JobState.FAILED, reason=f"{what} (on the way to its end)")
    if not _worth_it(failure.reason, retry, retries_used):
        return FollowUp(JobState.FAILED, reason=f"{_sentence(what)} {ADVICE[failure.reason]}")
    doubled = retry.backoff_seconds * 2.0 ** min(failures_in_a_row - 1, 40)
    delay = min(doubled, LONGEST_BACKOFF_SECONDS)
    counted = failure.reason not in FREE_RETRIES
    count = f"retry {retries_used + 1} of {retry.max_retries}" if counted else "another attempt"
    return FollowUp(
        JobState.QUEUED,
        reason=f"{count} in {delay:g} s after {what}",
        pending=resize or again,
        delay_seconds=delay,
        uses_retry=counted,
    )


def _worth_it(reason: FailureReason, retry: RetrySection, retries_used: int) -> bool:
    if reason in NEVER_RETRIED or reason not in retry.on:
        return False
    return reason in FREE_RETRIES or retries_used < retry.max_retries


def _sentence(text: str) -> str:
    """Return a text that another sentence can follow."""
    return text if text.endswith((".", "!", "?")) else f"{text}."

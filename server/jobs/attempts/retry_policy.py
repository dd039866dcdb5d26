"""Pure functions for an attempt's outcome and the job's next state.

See docs/lifecycle-failures.md, 23-26.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.base.backoff import Backoff
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.protocol.states import AttemptOutcome, DesiredState, JobState
from trainyard.run.failures import NEVER_RETRIED, REMEDIES, Failure, FailureReason, Remedy
from trainyard.spec.sections.retry import RetrySection
from trainyard.training.data_stream import merged

LONGEST_BACKOFF_SECONDS = 600.0
"""Maximum of the pause before a retry, in seconds; the pause doubles with each failure. Because of
the maximum, a retry follows soon after a person has removed the cause.
"""
PUT_BACK_SECONDS = 1.0
"""Pause after a put-back, in seconds. The next launch avoids the cause, such as a taken port."""
QUICK_PUT_BACKS = 5
"""Number of consecutive put-backs with the pause `PUT_BACK_SECONDS`; the pause doubles after each
further put-back."""
MAX_PUT_BACKS = QUICK_PUT_BACKS + math.ceil(math.log2(LONGEST_BACKOFF_SECONDS / PUT_BACK_SECONDS))
"""Number of consecutive put-backs after which the pause stops growing."""
OVER_TIME = Remedy(
    text="Resume with a longer resources.max_runtime_seconds, or without one.",
    field="resources.max_runtime_seconds",
)
"""Remedy for a job whose attempts reach their bound without progress."""
_NO_FURTHER = "It saved no step more than it began with, so another attempt would get no further."


@dataclass(frozen=True)
class NodeEnd:
    """The end of one node's share."""

    node: str
    outcome: AttemptOutcome
    failure: Failure | None


@dataclass(frozen=True)
class Rollback:
    """The rollback that a guard requires."""

    window: tuple[int, int]
    """First position in the data to skip, and the position after the last; steps of a program."""
    first_step: int
    """Step that started with the first position of the window."""
    checkpoint_id: str | None
    """Newest checkpoint of the lineage before `first_step`; None if there is none."""
    step: int
    """Step of the checkpoint `checkpoint_id`."""
    repeated: bool
    """Whether the failed attempt had already been ordered to skip this window."""

    def applied_to(self, launch: PendingLaunch) -> PendingLaunch:
        """Return the launch with the rollback's checkpoint, and with the window to skip."""
        update = {"checkpoint_id": self.checkpoint_id, "skip": merged([*launch.skip, self.window])}
        return launch.model_copy(update=update)


@dataclass(frozen=True)
class Fallback:
    """Replacement of a parent checkpoint that could not be loaded."""

    damaged: str | None
    """Id of the parent checkpoint if its damage is proved; None if the checkpoint was only
    unreadable, which may be temporary."""
    named: bool
    """Whether a person chose the checkpoint that could not be loaded."""
    replacement: str | None
    """Checkpoint that the next attempt loads. If the parent checkpoint was only unreadable, the
    next attempt loads it again. None if the lineage has no usable checkpoint.
    """

    @property
    def hopeless(self) -> str | None:
        """The reason why no attempt can follow, with a remedy; None if an attempt can follow."""
        if self.damaged is None:
            return None
        if self.named:
            named = f"{self.damaged} was named, so no other one replaces it"
            return f"{named}: resume from another one."
        if self.replacement is None:
            return "The lineage has no older checkpoint that is usable."
        return None


@dataclass(frozen=True)
class FollowUp:
    """The next state of a job after the end of an attempt."""

    state: JobState
    reason: str | None = None
    """Reason why the job waits or ended, with the failure's message."""
    pending: PendingLaunch | None = None
    """The next launch; None unless the next state is `queued`."""
    delay_seconds: float = 0.0
    """Pause before the next launch, in seconds."""
    uses_retry: bool = False
    """Whether the next launch uses up a retry."""
    rolls_back: bool = False
    """Whether the launch resumes from a checkpoint before a bad window of data and skips the
    window."""
    brief: str | None = None
    """After a failure, the reason without the failure's message; the attempt has the message."""

    @property
    def shown(self) -> str | None:
        """The reason that views of the job show."""
        return self.brief or self.reason


def verdict(
    ends: Sequence[NodeEnd],
    *,
    first_failure: Failure | None,
    desired: DesiredState,
    preempted: str | None = None,
    over_time: bool = False,
    gave_way: bool = False,
) -> tuple[AttemptOutcome, Failure | None]:
    """Return outcome and failure of an attempt after all of its shares have ended.

    Training that finished before a stop took effect is a success. If a node is lost, this loss is
    the cause of the failures that other nodes report.

    Args:
        ends: the end of each share.
        first_failure: the first failure that the server received.
        desired: state to which a person ordered the job.
        preempted: why the server ordered the attempt to save and leave while the job continues.
        over_time: whether the server gave the order to leave because the attempt reached its bound.
        gave_way: whether the attempt was backfilled on an estimate. If so, an order to give way
            never ends the job, regardless of `retry.on`.
    """
    failures = (end.failure for end in ends if end.failure is not None)
    lost = next((f for f in failures if f.reason == FailureReason.NODE_LOST), None)
    failure = lost or first_failure
    if failure is not None:
        return AttemptOutcome.FAILED, failure
    outcomes = {end.outcome for end in ends}
    if outcomes == {AttemptOutcome.SUCCEEDED}:
        return AttemptOutcome.SUCCEEDED, None
    if desired == DesiredState.RUN:  # a drain, or an announced shutdown of the machine
        nodes = ", ".join(e.node for e in ends if e.outcome != AttemptOutcome.SUCCEEDED)
        failure = Failure(
            reason=FailureReason.PREEMPTED,
            message=preempted or f"{nodes} ended the training without an order",
            remedy=OVER_TIME if over_time else REMEDIES[FailureReason.PREEMPTED],
            free_retry=gave_way and preempted is not None and not over_time,
        )
        return AttemptOutcome.FAILED, failure
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
    rollback: Rollback | None,
    fallback: Fallback | None = None,
    retry: RetrySection,
    retries_used: int,
    failures_in_a_row: int,
    at_once: bool = False,
    gets_further: bool = True,
) -> FollowUp:
    """Return the next state of the job after an attempt with this outcome and failure.

    Args:
        outcome: outcome of the attempt.
        failure: failure of the attempt; None after other outcomes.
        desired: state to which a person ordered the job.
        resize: launch of a resize that a person or the scheduler ordered while the attempt ran.
        again: a launch that repeats the ended attempt.
        rollback: the rollback that a guard requires.
        fallback: replacement for a checkpoint that could not be loaded.
        retry: the rules for retries.
        retries_used: number of failures that used up a retry since a person last started the job.
        failures_in_a_row: the count from `server.jobs.attempts.launch.failures_in_a_row`.
        at_once: whether the launch follows without a pause, because the cause of the end is gone.
        gets_further: False if the attempt reached its bound before it saved a later step.
    """
    if outcome == AttemptOutcome.STOPPED and resize is not None:
        return FollowUp(JobState.QUEUED, reason="waits for its new size", pending=resize)
    if failure is None:
        return FollowUp(JobState(outcome.value))
    what = f"{failure.reason}: {failure.message}"
    if desired != DesiredState.RUN and resize is None:
        return FollowUp(JobState.FAILED, reason=f"{what} (while the job was ending)")
    if resize is not None and resize.checkpoint_id is not None:
        rollback = None  # a person has chosen the checkpoint
    if fallback is not None and fallback.damaged is not None:
        return _fall_back(fallback, resize or again, failure)
    if failure.reason == FailureReason.PREEMPTED and not gets_further and resize is None:
        why = f"{_sentence(what)} {_NO_FURTHER} {failure.remedy.text}"
        return FollowUp(JobState.FAILED, reason=why)
    if rollback is not None:
        hopeless = _why_not_back(rollback, retry, retries_used)
    else:
        passing = fallback is not None or failure.free_retry
        hopeless = _why_hopeless(failure, retry, retries_used=retries_used, passing=passing)
    if hopeless is not None:
        return FollowUp(JobState.FAILED, reason=f"{_sentence(what)} {hopeless}")
    following = resize or again
    delay = 0.0 if at_once else _pause(failure, retry, failures_in_a_row)
    counted = not failure.is_free
    count = f"retry {retries_used + 1} of {retry.max_retries}" if counted else "another attempt"
    plan = f"{count} in {delay:g} s after {failure.reason}"
    return FollowUp(
        JobState.QUEUED,
        reason=f"{plan}: {failure.message}",
        brief=plan,
        pending=rollback.applied_to(following) if rollback else following,
        delay_seconds=delay,
        uses_retry=counted,
        rolls_back=rollback is not None,
    )


def _fall_back(fallback: Fallback, following: PendingLaunch, failure: Failure) -> FollowUp:
    """Resume from an older checkpoint immediately.

    A fallback uses up no retry. The number of fallbacks is limited, because each of them marks one
    more checkpoint as damaged.
    """
    is_named = following.checkpoint_id is not None  # named by a resize during the load
    if fallback.hopeless is not None and not is_named:
        what = _sentence(f"{failure.reason}: {failure.message}")
        return FollowUp(JobState.FAILED, reason=f"{what} {fallback.hopeless}")
    origin = following.checkpoint_id or fallback.replacement
    plan = f"continues from {origin} after {failure.reason}"
    return FollowUp(
        JobState.QUEUED, reason=f"{plan}: {failure.message}", pending=following, brief=plan
    )


def _why_hopeless(
    failure: Failure, retry: RetrySection, *, retries_used: int, passing: bool
) -> str | None:
    """Return the remedy if no attempt follows a failure, else None.

    A `passing` (temporary) failure is retried regardless of `retry.on`.
    """
    reason = failure.reason
    named = reason in retry.on or (
        reason == FailureReason.PROGRAM_ERROR and FailureReason.TRAINER_ERROR in retry.on
    )
    if not passing and (reason in NEVER_RETRIED or not named):
        return failure.remedy.text
    spent = not failure.is_free and retries_used >= retry.max_retries
    return failure.remedy.text if spent else None


def _why_not_back(rollback: Rollback, retry: RetrySection, retries_used: int) -> str | None:
    # A guard requires the rollback, regardless of `retry.on`.
    if rollback.repeated:
        return "A rollback left this window out before, and would only repeat."
    if rollback.checkpoint_id is None:
        return (
            f"No checkpoint lies before step {rollback.first_step}, so there is nothing to roll "
            "back to; save more often (checkpoint.interval_steps)."
        )
    if retries_used >= retry.max_retries:
        return f"All rollbacks are used up (retry.max_retries={retry.max_retries})."
    return None


def _pause(failure: Failure, retry: RetrySection, failures_in_a_row: int) -> float:
    """Return the pause before the next attempt, in seconds."""
    if failure.free_retry:
        first, tries = PUT_BACK_SECONDS, max(failures_in_a_row - QUICK_PUT_BACKS, 0) + 1
    elif failures_in_a_row == 1 and _is_of_signal(failure):
        return 0.0
    else:
        first, tries = retry.backoff_seconds, failures_in_a_row
    return Backoff(first, LONGEST_BACKOFF_SECONDS).pause_after(tries)


def _is_of_signal(failure: Failure) -> bool:
    """Return whether a signal ended a rank; the cause is then gone, and a pause would not help."""
    of_rank = failure.reason in (FailureReason.TRAINER_ERROR, FailureReason.PROGRAM_ERROR)
    return of_rank and failure.rank is not None and failure.signal is not None


def _sentence(text: str) -> str:
    """Return the text as a complete sentence, so that another sentence can follow."""
    return text if text.endswith((".", "!", "?")) else f"{text}."

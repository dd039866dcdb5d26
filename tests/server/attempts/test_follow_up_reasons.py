"""The sentences that say what follows an attempt's end, and the exact waits before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from server.attempts.retry_policy import Fallback, FollowUp, NodeEnd, Rollback, follow_up, verdict
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.protocol.states import AttemptCause, AttemptOutcome, DesiredState, JobState
from trainyard.run.failures import REMEDIES, Failure, FailureReason
from trainyard.spec.layout import Layout
from trainyard.spec.sections.retry import RetrySection

RUN, STOP = DesiredState.RUN, DesiredState.STOP
AGAIN = PendingLaunch(cause=AttemptCause.RETRY, actor="server", layout=Layout())
RESIZE = PendingLaunch(cause=AttemptCause.RESIZE, actor="ada", layout=Layout(dp_shard=2))
RETRY = RetrySection(on=tuple(FailureReason), backoff_seconds=5, max_retries=9)


def follow(reason: FailureReason, message: str = "it broke", **changes: Any) -> FollowUp:
    arguments: dict[str, Any] = {
        "desired": RUN,
        "resize": None,
        "again": AGAIN,
        "rollback": None,
        "retry": RETRY,
        "retries_used": 2,
        "failures_in_a_row": 1,
    }
    failure = Failure(reason=reason, message=message)
    return follow_up(AttemptOutcome.FAILED, failure, **arguments | changes)


@pytest.mark.parametrize(("in_a_row", "delay"), [(1, 5), (2, 10), (3, 20), (4, 40), (9, 600)])
def test_the_wait_doubles(in_a_row: int, delay: float) -> None:
    result = follow(FailureReason.HANG, failures_in_a_row=in_a_row)
    assert result.delay_seconds == delay
    assert result.reason == f"retry 3 of 9 in {delay} s after hang: it broke"


def test_a_cause_that_is_gone_needs_no_wait() -> None:
    result = follow(FailureReason.PREEMPTED, at_once=True)
    assert result.delay_seconds == 0
    assert result.reason == "another attempt in 0 s after preempted: it broke"


def test_a_resize_says_what_the_job_waits_for() -> None:
    result = follow_up(
        AttemptOutcome.STOPPED,
        None,
        desired=STOP,
        resize=RESIZE,
        again=AGAIN,
        rollback=None,
        retry=RETRY,
        retries_used=0,
        failures_in_a_row=0,
    )
    assert result == FollowUp(JobState.QUEUED, reason="waits for its new size", pending=RESIZE)


def test_a_failure_on_the_way_to_the_end_says_so() -> None:
    result = follow(FailureReason.HANG, desired=STOP)
    assert result == FollowUp(JobState.FAILED, reason="hang: it broke (on the way to its end)")


@pytest.mark.parametrize(
    ("message", "joined"),
    [
        ("it broke", "it broke."),
        ("it broke.", "it broke."),
        ("it broke!", "it broke!"),
        ("it broke?", "it broke?"),
    ],
)
def test_the_remedy_follows_a_whole_sentence(message: str, joined: str) -> None:
    result = follow(FailureReason.OUT_OF_MEMORY, message)
    assert result.reason == f"out_of_memory: {joined} {REMEDIES[FailureReason.OUT_OF_MEMORY].text}"


BACK = Rollback(window=(8, 16), first_step=3, checkpoint_id="c", step=2, repeated=False)


@pytest.mark.parametrize(
    ("rollback", "used", "words"),
    [
        (
            Rollback((8, 16), 3, "c", 2, repeated=True),
            2,
            "These sequences were left out before, so a rollback would only repeat.",
        ),
        (
            Rollback((8, 16), 3, None, 0, repeated=False),
            2,
            "No checkpoint lies before step 3, so there is nothing to roll back to; save more "
            "often (checkpoint.interval_steps).",
        ),
        (BACK, 9, "All rollbacks are used up (retry.max_retries=9)."),
        (BACK, 10, "All rollbacks are used up (retry.max_retries=9)."),
    ],
)
def test_why_no_rollback_follows(rollback: Rollback, used: int, words: str) -> None:
    result = follow(FailureReason.NON_FINITE_LOSS, rollback=rollback, retries_used=used)
    assert result == FollowUp(JobState.FAILED, reason=f"non_finite_loss: it broke. {words}")


def test_the_last_rollback_of_the_budget_is_made() -> None:
    result = follow(FailureReason.NON_FINITE_LOSS, rollback=BACK, retries_used=8)
    assert (result.state, result.rolls_back, result.uses_retry) == (JobState.QUEUED, True, True)


NAMED = AGAIN.model_copy(update={"checkpoint_id": "chosen"})


@pytest.mark.parametrize(
    ("fallback", "changes", "expected"),
    [
        (
            Fallback("c8", named=False, replacement="c4"),
            {},
            FollowUp(JobState.QUEUED, "continues from c4 after {what}", AGAIN),
        ),
        (  # no budget is needed: one checkpoint less is left each time
            Fallback("c8", named=False, replacement="c4"),
            {"retries_used": 9, "retry": RetrySection(on=(), max_retries=0)},
            FollowUp(JobState.QUEUED, "continues from c4 after {what}", AGAIN),
        ),
        (
            Fallback("c8", named=False, replacement=None),
            {},
            FollowUp(
                JobState.FAILED, "{what}. The lineage has no older checkpoint that is usable."
            ),
        ),
        (
            Fallback("c8", named=True, replacement="c4"),
            {},
            FollowUp(
                JobState.FAILED,
                "{what}. c8 was named, so no other one replaces it: resume from another one.",
            ),
        ),
        (  # a resize that was asked for while the attempt was loading names another checkpoint
            Fallback("c8", named=True, replacement="c4"),
            {"resize": NAMED, "desired": STOP},
            FollowUp(JobState.QUEUED, "continues from chosen after {what}", NAMED),
        ),
        (
            Fallback("c8", named=False, replacement=None),
            {"resize": NAMED, "desired": STOP},
            FollowUp(JobState.QUEUED, "continues from chosen after {what}", NAMED),
        ),
        (
            Fallback("c8", named=False, replacement="c4"),
            {"resize": RESIZE},
            FollowUp(JobState.QUEUED, "continues from c4 after {what}", RESIZE),
        ),
    ],
)
def test_what_follows_a_damaged_checkpoint(
    fallback: Fallback, changes: dict[str, Any], expected: FollowUp
) -> None:
    result = follow(FailureReason.CHECKPOINT_ERROR, fallback=fallback, **changes)
    what = "checkpoint_error: it broke"
    assert expected.reason is not None
    brief = expected.reason.format(what="checkpoint_error") if expected.pending else None
    assert result == replace(expected, reason=expected.reason.format(what=what), brief=brief)
    assert result.shown == (brief or result.reason)


def test_storage_that_refuses_is_tried_again_on_the_budget() -> None:
    refused = Fallback(None, named=True, replacement=None)
    unlisted = RetrySection(on=(), backoff_seconds=5, max_retries=9)
    result = follow(FailureReason.CHECKPOINT_ERROR, fallback=refused, retry=unlisted)
    assert (result.state, result.uses_retry, result.pending) == (JobState.QUEUED, True, AGAIN)
    spent = follow(FailureReason.CHECKPOINT_ERROR, fallback=refused, retry=unlisted, retries_used=9)
    assert spent == FollowUp(
        JobState.FAILED,
        f"checkpoint_error: it broke. {REMEDIES[FailureReason.CHECKPOINT_ERROR].text}",
    )


def test_the_nodes_that_ended_unasked_are_named() -> None:
    ends = [
        NodeEnd("a", AttemptOutcome.STOPPED, None),
        NodeEnd("b", AttemptOutcome.SUCCEEDED, None),
        NodeEnd("c", AttemptOutcome.CANCELLED, None),
    ]
    words = "a, c ended the training without an order"
    expected = Failure(reason=FailureReason.PREEMPTED, message=words)
    assert verdict(ends, first_failure=None, desired=RUN) == (AttemptOutcome.FAILED, expected)
    _, moved = verdict(ends, first_failure=None, desired=RUN, preempted="a drain")
    assert moved == Failure(reason=FailureReason.PREEMPTED, message="a drain")

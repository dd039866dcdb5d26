"""Classification of ends, the retry decision, its explanation, and the backoff."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.jobs.attempts.retry_policy import (
    LONGEST_BACKOFF_SECONDS,
    MAX_PUT_BACKS,
    Fallback,
    FollowUp,
    NodeEnd,
    Rollback,
    follow_up,
    verdict,
)
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.protocol.states import AttemptCause, AttemptOutcome, DesiredState, JobState
from trainyard.run.failures import FREE_RETRIES, NEVER_RETRIED, REMEDIES, Failure, FailureReason
from trainyard.spec.layout import Layout
from trainyard.spec.sections.retry import RetrySection

RUN, STOP, CANCEL = DesiredState.RUN, DesiredState.STOP, DesiredState.CANCEL
RETRY = RetrySection(on=tuple(FailureReason), backoff_seconds=5, max_retries=9)
AGAIN = PendingLaunch(cause=AttemptCause.RETRY, actor="server", layout=Layout())
RESIZE = PendingLaunch(cause=AttemptCause.RESIZE, actor="ada", layout=Layout(dp_shard=2))


def failure(reason: FailureReason, message: str = "it broke") -> Failure:
    return Failure(reason=reason, message=message)


@pytest.mark.parametrize(
    ("outcomes", "desired", "expected"),
    [
        (["succeeded", "succeeded"], RUN, "succeeded"),
        (["succeeded", "succeeded"], STOP, "succeeded"),
        (["succeeded"], CANCEL, "succeeded"),
        (["stopped", "stopped"], STOP, "stopped"),
        (["stopped", "cancelled"], STOP, "stopped"),
        (["succeeded", "stopped"], STOP, "stopped"),
        (["stopped", "stopped"], CANCEL, "stopped"),
        (["stopped", "cancelled"], CANCEL, "cancelled"),
        (["cancelled"], CANCEL, "cancelled"),
        (["stopped"], RUN, "failed"),
        (["cancelled", "succeeded"], RUN, "failed"),
    ],
)
def test_outcomes_without_a_failure(
    outcomes: list[str], desired: DesiredState, expected: str
) -> None:
    ends = [NodeEnd(f"n{i}", AttemptOutcome(o), None) for i, o in enumerate(outcomes)]
    outcome, why = verdict(ends, first_failure=None, desired=desired)
    assert outcome == expected
    assert (why is not None) == (expected == "failed")
    if why is not None:
        assert why.reason == FailureReason.PREEMPTED


def test_the_first_failure_counts_unless_a_node_was_lost() -> None:
    first, later = failure(FailureReason.TRAINER_ERROR), failure(FailureReason.HANG)
    lost = failure(FailureReason.NODE_LOST)
    ends = [
        NodeEnd("a", AttemptOutcome.FAILED, first),
        NodeEnd("b", AttemptOutcome.FAILED, later),
    ]
    assert verdict(ends, first_failure=first, desired=RUN) == ("failed", first)
    ends.append(NodeEnd("c", AttemptOutcome.FAILED, lost))
    assert verdict(ends, first_failure=first, desired=RUN) == ("failed", lost)


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


def follow(
    reason: FailureReason | Failure | None, outcome: str = "failed", **changes: Any
) -> FollowUp:
    given_arguments: dict[str, Any] = {
        "desired": RUN,
        "resize": None,
        "again": AGAIN,
        "rollback": None,
        "retry": RETRY,
        "retries_used": 2,
        "failures_in_a_row": 1,
    }
    why = failure(reason) if isinstance(reason, FailureReason) else reason
    return follow_up(AttemptOutcome(outcome), why, **given_arguments | changes)


PUT_BACK = replace(failure(FailureReason.LAUNCH_ERROR), free_retry=True)


def test_a_launch_that_was_put_back_costs_no_retry() -> None:
    spent = RetrySection(max_retries=0)
    ended = follow(PUT_BACK, retry=spent)
    assert (ended.state, ended.uses_retry) == (JobState.QUEUED, False)
    assert ended.reason is not None
    assert ended.reason.startswith("another attempt in 1 s after launch_error")
    paid = follow(failure(FailureReason.LAUNCH_ERROR), retry=spent)
    assert (paid.state, paid.uses_retry) == (JobState.FAILED, False)


def test_a_launch_that_was_put_back_is_repeated_whatever_the_spec_retries() -> None:
    nothing = RetrySection(on=())
    assert follow(failure(FailureReason.LAUNCH_ERROR), retry=nothing).state == JobState.FAILED
    assert follow(PUT_BACK, retry=nothing).state == JobState.QUEUED


@pytest.mark.parametrize("seconds", [0.0, 0.5, 5.0, 900.0])
@pytest.mark.parametrize(
    ("in_a_row", "delay"), [(1, 1), (5, 1), (6, 2), (7, 4), (14, 512), (15, 600), (5000, 600)]
)
def test_put_backs_in_a_row_wait_longer_whatever_the_backoff(
    in_a_row: int, delay: float, seconds: float
) -> None:
    retry = RetrySection(backoff_seconds=seconds)
    assert follow(PUT_BACK, failures_in_a_row=in_a_row, retry=retry).delay_seconds == delay


def test_put_backs_are_counted_up_to_the_longest_pause() -> None:
    counts = (MAX_PUT_BACKS - 1, MAX_PUT_BACKS)
    pauses = [follow(PUT_BACK, failures_in_a_row=count).delay_seconds for count in counts]
    assert pauses[0] < pauses[1] == LONGEST_BACKOFF_SECONDS


@pytest.mark.parametrize("reason", FailureReason)
def test_which_failures_are_retried(reason: FailureReason) -> None:
    result = follow(reason)
    assert (result.state == JobState.QUEUED) == (reason not in NEVER_RETRIED)
    assert follow(reason, retry=RetrySection(on=())).state == JobState.FAILED
    spent = follow(reason, retries_used=9)
    assert (spent.state == JobState.QUEUED) == (reason in FREE_RETRIES)
    if result.state == JobState.QUEUED:
        assert result.uses_retry == (reason not in FREE_RETRIES)
        assert result.pending == AGAIN


@pytest.mark.parametrize("desired", [STOP, CANCEL])
def test_an_attempt_that_is_to_end_gets_no_retry(desired: DesiredState) -> None:
    assert follow(FailureReason.HANG, desired=desired).state == JobState.FAILED


def test_a_failure_on_the_way_to_the_end_says_so() -> None:
    result = follow(FailureReason.HANG, desired=STOP)
    assert result == FollowUp(JobState.FAILED, reason="hang: it broke (while the job was ending)")


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
    result = follow(failure(FailureReason.OUT_OF_MEMORY, message))
    assert result.reason == f"out_of_memory: {joined} {REMEDIES[FailureReason.OUT_OF_MEMORY].text}"


def test_a_resize_goes_on_when_its_stop_failed() -> None:
    result = follow(FailureReason.HANG, desired=STOP, resize=RESIZE)
    assert (result.state, result.pending) == (JobState.QUEUED, RESIZE)


def test_a_resize_after_a_stop_names_what_the_job_waits_for() -> None:
    result = follow(None, "stopped", desired=STOP, resize=RESIZE)
    assert result == FollowUp(JobState.QUEUED, reason="waits for its new size", pending=RESIZE)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [("stopped", "queued"), ("succeeded", "succeeded"), ("cancelled", "cancelled")],
)
def test_a_resize_follows_a_stop_only(outcome: str, state: str) -> None:
    result = follow(None, outcome, desired=STOP, resize=RESIZE)
    assert result.state == state
    assert (result.pending == RESIZE) == (state == "queued")


@pytest.mark.parametrize(("in_a_row", "delay"), [(1, 5), (2, 10), (3, 20), (4, 40), (9, 600)])
def test_the_wait_doubles(in_a_row: int, delay: float) -> None:
    result = follow(FailureReason.HANG, failures_in_a_row=in_a_row)
    assert result.delay_seconds == delay
    assert result.reason == f"retry 3 of 9 in {delay} s after hang: it broke"


@pytest.mark.parametrize(
    ("changes", "in_a_row", "delay"),
    [
        ({}, 1, 0),
        ({}, 2, 10),
        ({}, 3, 20),
        ({"signal": None}, 1, 5),  # it raised, and would raise again
        ({"reason": FailureReason.PROGRAM_ERROR}, 1, 0),
        ({"rank": None}, 1, 5),  # the launcher was killed, not a rank
        ({"reason": FailureReason.HANG}, 1, 5),  # NCCL's watchdog aborted it
    ],
)
def test_the_first_retry_after_a_signal_to_a_rank_does_not_wait(
    changes: dict[str, Any], in_a_row: int, delay: float
) -> None:
    killed = replace(failure(FailureReason.TRAINER_ERROR), rank=1, signal="SIGKILL")
    result = follow(replace(killed, **changes), failures_in_a_row=in_a_row)
    assert (result.delay_seconds, result.uses_retry) == (delay, True)


def test_an_error_of_the_trainer_stands_for_one_of_a_program() -> None:
    own, other = (FailureReason.PROGRAM_ERROR,), (FailureReason.HANG,)
    for on, state in ((RetrySection().on, "queued"), (own, "queued"), (other, "failed")):
        retry = RetrySection(on=on, max_retries=9)
        assert follow(FailureReason.PROGRAM_ERROR, retry=retry).state == state


def test_a_cause_that_is_gone_needs_no_wait() -> None:
    result = follow(FailureReason.PREEMPTED, at_once=True)
    assert result.delay_seconds == 0
    assert result.reason == "another attempt in 0 s after preempted: it broke"


@given(st.integers(1, 5000), st.floats(0, 10_000))
def test_backoff_doubles_up_to_its_limit(in_a_row: int, seconds: float) -> None:
    retry = RetrySection(on=(FailureReason.HANG,), backoff_seconds=seconds, max_retries=5)
    delay = follow(FailureReason.HANG, retry=retry, failures_in_a_row=in_a_row).delay_seconds
    assert 0 <= delay <= LONGEST_BACKOFF_SECONDS
    first = follow(FailureReason.HANG, retry=retry).delay_seconds
    assert first == min(seconds, LONGEST_BACKOFF_SECONDS)
    assert delay >= first


# ---- rollbacks -----------------------------------------------------------------------------------

BACK = Rollback(
    window=(96, 128), first_step=7, checkpoint_id="job.a1.step-4", step=4, repeated=False
)


def rolled_back(**changes: Any) -> FollowUp:
    arguments: dict[str, Any] = {
        "rollback": BACK,
        "retry": RetrySection(max_retries=2, on=()),
        "retries_used": 0,
    }
    return follow(FailureReason.NON_FINITE_LOSS, **arguments | changes)


def test_a_rollback_needs_no_reason_to_be_listed_but_uses_the_budget() -> None:
    result = rolled_back()
    assert (result.state, result.rolls_back, result.uses_retry) == (JobState.QUEUED, True, True)
    assert result.pending is not None
    assert result.pending.checkpoint_id == "job.a1.step-4"
    assert result.pending.skip == ((96, 128),)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"retries_used": 2}, "retry.max_retries=2"),
        ({"rollback": replace(BACK, repeated=True)}, "left this window out before"),
        ({"rollback": replace(BACK, checkpoint_id=None)}, "No checkpoint lies before step 7"),
        ({"desired": STOP}, "while the job was ending"),
    ],
)
def test_a_rollback_that_cannot_be_ends_the_job(changes: dict[str, Any], why: str) -> None:
    result = rolled_back(**changes)
    assert (result.state, result.pending, result.rolls_back) == (JobState.FAILED, None, False)
    assert result.reason is not None
    assert why in result.reason


def test_a_resize_that_fails_on_its_way_rolls_back_too() -> None:
    result = rolled_back(resize=RESIZE, desired=STOP)
    assert result.pending == RESIZE.model_copy(
        update={"checkpoint_id": "job.a1.step-4", "skip": ((96, 128),)}
    )
    chosen = RESIZE.model_copy(update={"checkpoint_id": "job.a1.step-2"})
    other = rolled_back(resize=chosen, desired=STOP, retry=RETRY)
    assert (other.pending, other.rolls_back) == (chosen, False)


@pytest.mark.parametrize(
    ("rollback", "used", "words"),
    [
        (
            replace(BACK, repeated=True),
            2,
            "A rollback left this window out before, and would only repeat.",
        ),
        (
            replace(BACK, checkpoint_id=None),
            2,
            "No checkpoint lies before step 7, so there is nothing to roll back to; save more "
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


# ---- damaged checkpoints -------------------------------------------------------------------------

NAMED = AGAIN.model_copy(update={"checkpoint_id": "chosen"})


@pytest.mark.parametrize(
    ("fallback", "changes", "expected"),
    [
        (
            Fallback("c8", named=False, replacement="c4"),
            {},
            FollowUp(JobState.QUEUED, "continues from c4 after {what}", AGAIN),
        ),
        (  # no budget is needed: each time one checkpoint fewer remains
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
        (  # a resize requested during the load names another checkpoint
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

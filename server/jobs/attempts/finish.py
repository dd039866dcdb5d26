"""Ends shares and attempts, and moves the job to its next state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, update

from server.core.context import Context
from server.core.database.rows import AttemptNode
from server.core.database.tables import attempt_nodes, attempts, requests
from server.core.errors import UnreadableError
from server.core.events.store import NewEvent
from server.core.lifecycle import Move, attempt_to, job_to, move, node_to
from server.core.subject import SERVER, Actor
from server.jobs.attempts.earlier_checkpoint import append_rollback, find_fallback, find_rollback
from server.jobs.attempts.launch import (
    Launch,
    effective_spec,
    failures_in_a_row,
    gets_further,
    newest_saved_step,
    read_launch,
    release_spares,
    settle,
)
from server.jobs.attempts.recovery import queue_recovery
from server.jobs.attempts.retry_policy import (
    Fallback,
    FollowUp,
    NodeEnd,
    Rollback,
    follow_up,
    verdict,
)
from server.jobs.operations.builds import queue_build
from server.jobs.ranks.hangs import explained
from trainyard.protocol.rest.event_data import (
    AttemptEnded,
    CancelRequested,
    JobEnded,
    NodeEnded,
    Queued,
    StopRequested,
)
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.protocol.states import (
    AttemptCause,
    AttemptNodeState,
    AttemptOutcome,
    AttemptState,
    DesiredState,
    JobState,
)
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.records import ExitRecord, RequestAnswer
from trainyard.spec.job import JobSpec


def end_nodes(
    context: Context,
    connection: Connection,
    attempt_id: str,
    ends: Sequence[NodeEnd],
    *,
    actor: Actor,
    exit_record: ExitRecord | None = None,
) -> None:
    """End shares of an attempt; the end of the last share ends the attempt.

    The caller holds the job's lock. The first failure of a share fails the attempt, and the server
    then orders the other nodes to end. The end of a lost share only frees its slots, because the
    attempt may have ended before.

    Raises:
        IllegalMoveError: a share has ended already.
    """
    launch = read_launch(connection, attempt_id)
    for end in ends:
        _end_node(context, connection, launch=launch, end=end, actor=actor, exit_record=exit_record)
    if launch.attempt.state == AttemptState.ENDED:
        return
    failure = launch.attempt.failure or next((e.failure for e in ends if e.failure), None)
    if failure is not None and launch.attempt.failure is None:
        failed = update(attempts).where(attempts.c.id == attempt_id)
        connection.execute(failed.values(failure=failure))
    left = read_launch(connection, attempt_id)
    if not left.live:
        _end_attempt(context, connection, left)
    elif failure is not None and left.attempt.desired != DesiredState.CANCEL:
        order(
            context,
            connection,
            launch=left,
            desired=DesiredState.CANCEL,
            actor=SERVER,
            reason=f"{failure.node or 'a node'} failed",
        )


def lose_node(
    context: Context, connection: Connection, *, attempt_id: str, failure: Failure, actor: Actor
) -> None:
    """Mark a silent share as lost, so that its attempt ends without it.

    The caller holds the job's lock. The failure is `node_lost`, and the share keeps its slots until
    its end is proved (docs/lifecycle-sizes.md, 51).
    """
    lost = update(attempt_nodes).where(
        attempt_nodes.c.attempt_id == attempt_id, attempt_nodes.c.node == failure.node
    )
    values = {"lost_at": context.now(), "outcome": AttemptOutcome.FAILED.value, "failure": failure}
    connection.execute(lost.values(values))
    unless = update(attempts).where(attempts.c.id == attempt_id, attempts.c.failure.is_(None))
    connection.execute(unless.values(failure=failure))
    end_nodes(context, connection, attempt_id, [], actor=actor)


def order(
    context: Context,
    connection: Connection,
    *,
    launch: Launch,
    desired: DesiredState,
    actor: Actor,
    reason: str,
    moves: Sequence[Move] = (),
    goes_on: bool = False,
    lost: str | None = None,
) -> None:
    """Order an attempt's nodes to end their shares, and end unclaimed shares immediately.

    While a share is unclaimed, no rank trains and there is nothing to save. So even a stop then
    cancels the claimed shares.

    Args:
        context: the server's context.
        connection: a transaction that holds the job's lock.
        launch: the attempt, which has not ended.
        desired: `stop` or `cancel`.
        actor: who gives the order.
        reason: why the nodes are ordered to end.
        moves: further state changes to store with the same event.
        goes_on: whether the job continues on other nodes after a stop.
        lost: the steps that a cancel loses, as text.
    """
    unclaimed = launch.unclaimed
    cancelled = launch.attempt.desired == DesiredState.CANCEL  # a cancel never becomes a stop
    effective = DesiredState.CANCEL if unclaimed or cancelled else desired
    attempt = launch.attempt
    connection.execute(
        update(attempts)
        .where(attempts.c.id == attempt.id)
        .values(desired=effective.value, ordered_at=context.now())
    )
    stopping = [] if attempt.state == AttemptState.STOPPING else [AttemptState.STOPPING]
    stop = desired == DesiredState.STOP
    event = NewEvent(
        StopRequested(reason=reason, goes_on=goes_on)
        if stop
        else CancelRequested(reason=reason, lost=lost),
        actor,
        launch.subject,
        f"{'Save and leave' if stop else 'Leave now'}{': ' if reason else ''}{reason}",
    )
    move(context, connection, event, *moves, *(attempt_to(attempt.id, state) for state in stopping))
    if unclaimed:
        outcome = AttemptOutcome.STOPPED if stop else AttemptOutcome.CANCELLED
        ends = [NodeEnd(node.node, outcome, None) for node in unclaimed]
        end_nodes(context, connection, attempt.id, ends, actor=actor)


def preempt(
    context: Context, connection: Connection, attempt_id: str, *, actor: Actor, because: str
) -> None:
    """Order an attempt to save and leave, while its job continues on other nodes.

    The order has no effect on an attempt already ordered to end. The caller holds the job's lock.
    """
    launch = read_launch(connection, attempt_id)
    if launch.attempt.desired != DesiredState.RUN or not launch.live:
        return
    connection.execute(
        update(attempts).where(attempts.c.id == attempt_id).values(preempted=because)
    )
    order(
        context,
        connection,
        launch=launch,
        desired=DesiredState.STOP,
        actor=actor,
        reason=because,
        moves=[job_to(launch.job.id, JobState.STOPPING, reason=because)],
        goes_on=True,
    )


def _end_node(
    context: Context,
    connection: Connection,
    *,
    launch: Launch,
    end: NodeEnd,
    actor: Actor,
    exit_record: ExitRecord | None,
) -> None:
    # The attempt's event has the first failure in full; this event details only later failures.
    detail = f": {end.failure.reason}" if end.failure else ""
    if end.failure and launch.attempt.failure:
        detail += f": {end.failure.message}"
    share = next(each for each in launch.nodes if each.node == end.node)
    ending: dict[str, Any] = {"exit": exit_record, "unreachable_since": None}
    if share.lost_at is None:  # a lost share keeps the outcome used by the verdict
        ending |= {"outcome": end.outcome.value, "failure": end.failure}
    event = NewEvent(
        NodeEnded(outcome=end.outcome, failure=_brief(end.failure)),
        actor,
        launch.subject.on(end.node),
        f"the share of {end.node} {end.outcome}{detail}",
    )
    move(
        context,
        connection,
        event,
        node_to(
            launch.attempt.id,
            end.node,
            AttemptNodeState.ENDED,
            **ending,
        ),
    )
    settle(context, connection, launch=launch, share=share)


def _end_attempt(context: Context, connection: Connection, launch: Launch) -> None:
    job, attempt = launch.job, launch.attempt
    ends = [NodeEnd(n.node, _outcome(n), n.failure) for n in launch.nodes]
    outcome, failure = verdict(
        ends,
        first_failure=attempt.failure,
        desired=job.desired,
        preempted=attempt.preempted,
        over_time=attempt.is_over_time,
        gave_way=attempt.gives_way,
    )
    if failure is not None:
        failure = explained(connection, failure, launch.nodes)
    now = context.now()
    event = NewEvent(
        AttemptEnded(outcome=outcome, failure=_brief(failure)),
        SERVER,
        launch.subject,
        f"Attempt {attempt.number} {outcome}{launch.step_words}"
        + (f": {failure.reason}" if failure else ""),  # the job's event has the whole text
    )
    move(
        context,
        connection,
        event,
        attempt_to(
            attempt.id,
            AttemptState.ENDED,
            outcome=outcome.value,
            failure=failure,
            ended_at=now,
        ),
    )
    _answer_what_is_left(connection, attempt.id, attempt.last_step)
    rollback = find_rollback(connection, launch, failure)
    try:
        spec = effective_spec(connection, attempt.id)
        queue_recovery(context, connection, launch, root=spec.checkpoint.root)
        fallback = find_fallback(context, connection, launch=launch, failure=failure)
        follow = _follow_up(connection, launch, spec, outcome, failure, rollback, fallback)
        if failure is not None and follow.pending is not None:
            queue_build(context, connection, job=job, spec=spec, failure=failure)
    except UnreadableError as error:  # no launch can follow, but the attempt must still end
        cause = f"{failure.reason}: {failure.message}; " if failure is not None else ""
        follow = FollowUp(JobState(outcome.value), reason=f"{cause}{error}")
    if not _is_replaced(follow, failure):
        release_spares(context, connection, launch)
    _move_job(context, connection, launch, follow)
    if failure is not None and rollback is not None and follow.rolls_back:
        append_rollback(context, connection, launch=launch, rollback=rollback, failure=failure)


def _follow_up(
    connection: Connection,
    launch: Launch,
    spec: JobSpec,
    outcome: AttemptOutcome,
    failure: Failure | None,
    rollback: Rollback | None,
    fallback: Fallback | None,
) -> FollowUp:
    job, attempt = launch.job, launch.attempt
    saved = newest_saved_step(connection, attempt.id)
    return follow_up(
        outcome,
        failure,
        desired=job.desired,
        resize=job.pending,
        again=PendingLaunch(
            cause=AttemptCause.RETRY,
            actor=SERVER.name,
            overrides=attempt.overrides.with_priority(job.spec, job.priority),
            layout=attempt.layout,
            # Both fields apply only to a checkpoint that a person named, not to own saves.
            allow_code_change=attempt.allow_code_change and saved is None,
            parent_named=attempt.parent_named and saved is None,
        ),
        rollback=rollback,
        fallback=fallback,
        retry=spec.retry,
        retries_used=job.retries_used,
        failures_in_a_row=failures_in_a_row(connection, launch, failure),
        gets_further=not attempt.is_over_time or gets_further(spec, attempt, saved),
        at_once=attempt.preempted is not None
        or any(node.lost_at for node in launch.nodes)
        or (_is_lost(failure) and bool(launch.spares) and attempt.last_step > attempt.start_step),
    )


def _is_replaced(follow: FollowUp, failure: Failure | None) -> bool:
    """Return whether the next attempt replaces a lost node with a spare node.

    The node is not replaced after a pause, because spare nodes would then idle for minutes.
    """
    again = follow.pending is not None and follow.pending.cause == AttemptCause.RETRY
    return again and _is_lost(failure) and follow.delay_seconds == 0


def _is_lost(failure: Failure | None) -> bool:
    return failure is not None and failure.reason == FailureReason.NODE_LOST


def _outcome(share: AttemptNode) -> AttemptOutcome:
    assert share.outcome is not None, "a share that has ended has an outcome"
    return share.outcome


def _move_job(context: Context, connection: Connection, launch: Launch, follow: FollowUp) -> None:
    job, now = launch.job, context.now()
    progress = job.progress.model_copy(update={"phase": None, "seconds_left": None})
    common: dict[str, Any] = {
        "reason": follow.shown,
        "pending": follow.pending,
        "desired": DesiredState.RUN.value if follow.pending else job.desired,
        "progress": progress,
    }
    if follow.pending is None:
        event = NewEvent(
            JobEnded(state=follow.state, reason=follow.reason),
            SERVER,
            launch.subject,
            f"{job.name} {follow.state}" + (f": {follow.reason}" if follow.reason else ""),
        )
        move(context, connection, event, job_to(job.id, follow.state, ended_at=now, **common))
        return
    not_before = now + timedelta(seconds=follow.delay_seconds) if follow.delay_seconds else None
    layout = follow.pending.layout
    resources = follow.pending.overrides.apply(job.spec).resources
    used = job.retries_used + 1 if follow.uses_retry else job.retries_used
    event = NewEvent(
        Queued(cause=follow.pending.cause, not_before=not_before, reason=follow.reason),
        SERVER,
        launch.subject,
        f"{job.name} is queued again: {follow.reason}",
    )
    queued = job_to(
        job.id,
        JobState.QUEUED,
        queued_at=now,
        not_before=not_before,
        retries_used=used,
        priority=resources.priority,
        world_size=layout.world_size,
        min_world_size=resources.min_world_size,
        max_world_size=resources.max_world_size,
        layout=job.spec.layout_name(layout),
        **common,
    )
    move(context, connection, event, queued)


def _answer_what_is_left(connection: Connection, attempt_id: str, step: int) -> None:
    answer = RequestAnswer(ok=False, message="the attempt ended before it was done", step=step)
    connection.execute(
        update(requests)
        .where(requests.c.attempt_id == attempt_id, requests.c.answer.is_(None))
        .values(answer=answer)
    )


def _brief(failure: Failure | None) -> Failure | None:
    """Return the failure without its traceback, which the attempt's row has."""
    return replace(failure, traceback=None) if failure else None

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
from server.core.events.store import NewEvent, append_event
from server.core.lifecycle import Move, attempt_to, job_to, move, node_to
from server.core.subject import SERVER, Actor
from server.jobs.attempts.earlier_checkpoint import find_fallback, find_rollback, rolled_back
from server.jobs.attempts.launch import (
    Launch,
    effective_spec,
    failures_in_a_row,
    newest_saved_step,
    read_launch,
    release_spares,
    runs_program,
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
    then orders the other nodes to end. A lost share may end after its attempt; in this case, the
    end of the share only frees its slots.

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
    """Mark a silent share as lost, so that its attempt can end without waiting for the share.

    The caller holds the job's lock. The failure is `node_lost`. The share keeps its slots until its
    end is proved (docs/lifecycle-sizes.md, 51).
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

    While a share is unclaimed, no rank trains, so there is nothing to save. In this case, even a
    stop cancels the claimed shares. The caller holds the job's lock.

    Args:
        context: the server's context.
        connection: a writing transaction.
        launch: the attempt, which has not ended.
        desired: `stop` or `cancel`.
        actor: who gives the order.
        reason: why the nodes are ordered to end.
        moves: further state changes to store with the same event.
        goes_on: whether the job continues on other nodes after a stop.
        lost: the steps that a cancel loses, as text.
    """
    attempt = launch.attempt
    unclaimed = [node for node in launch.nodes if node.state == AttemptNodeState.PLACED]
    cancelled = attempt.desired == DesiredState.CANCEL  # a cancel never becomes a stop
    effective = DesiredState.CANCEL if unclaimed or cancelled else desired
    ordered = {"desired": effective.value, "ordered_at": context.now()}
    connection.execute(update(attempts).where(attempts.c.id == attempt.id).values(ordered))
    if attempt.state != AttemptState.STOPPING:
        moves = [*moves, attempt_to(attempt.id, AttemptState.STOPPING)]
    stop = desired == DesiredState.STOP
    event = NewEvent(
        StopRequested(reason=reason, goes_on=goes_on)
        if stop
        else CancelRequested(reason=reason, lost=lost),
        actor,
        launch.subject,
        f"{'Save and leave' if stop else 'Leave now'}{': ' if reason else ''}{reason}",
    )
    move(context, connection, event, *moves)
    if unclaimed:
        outcome = AttemptOutcome.STOPPED if stop else AttemptOutcome.CANCELLED
        ends = [NodeEnd(node.node, outcome, None) for node in unclaimed]
        end_nodes(context, connection, attempt.id, ends, actor=actor)


def preempt(
    context: Context, connection: Connection, attempt_id: str, *, actor: Actor, because: str
) -> None:
    """Order an attempt to save and leave; its job is queued again if its retry rules permit this.

    The order has no effect on an attempt already ordered to end. The caller holds the job's lock.
    """
    launch = read_launch(connection, attempt_id)
    if launch.attempt.desired != DesiredState.RUN or not launch.live:
        return
    preempted = update(attempts).where(attempts.c.id == attempt_id)
    connection.execute(preempted.values(preempted=because))
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
    ended = node_to(launch.attempt.id, end.node, AttemptNodeState.ENDED, **ending)
    move(context, connection, event, ended)
    settle(context, connection, launch=launch, share=share)


def _end_attempt(context: Context, connection: Connection, launch: Launch) -> None:
    job, attempt = launch.job, launch.attempt
    outcome, failure = verdict(
        [NodeEnd(n.node, _outcome(n), n.failure) for n in launch.nodes],
        first_failure=attempt.failure,
        desired=job.desired,
        preempted=attempt.preempted,
        over_time=attempt.is_over_time,
        gave_way=attempt.gives_way,
    )
    if failure is not None:
        failure = explained(connection, failure, launch.nodes)
    step = attempt.last_step
    words = f" at step {step}" if step or not runs_program(job) else ""
    words += f": {failure.reason}" if failure else ""  # the job's event has the whole text
    event = NewEvent(
        AttemptEnded(outcome=outcome, failure=_brief(failure)),
        SERVER,
        launch.subject,
        f"Attempt {attempt.number} {outcome}{words}",
    )
    values = {"outcome": outcome.value, "failure": failure, "ended_at": context.now()}
    move(context, connection, event, attempt_to(attempt.id, AttemptState.ENDED, **values))
    message = "the attempt ended before it was done"
    open_requests = (requests.c.attempt_id == attempt.id) & requests.c.answer.is_(None)
    answer = RequestAnswer(ok=False, message=message, step=step)
    connection.execute(update(requests).where(open_requests).values(answer=answer))
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
    retried = follow.pending is not None and follow.pending.cause == AttemptCause.RETRY
    # A spare node does not replace a lost node after a pause, because it would idle for minutes.
    if not (retried and _is_lost(failure) and follow.delay_seconds == 0):
        release_spares(context, connection, launch)
    _move_job(context, connection, launch, follow)
    if failure is not None and rollback is not None and follow.rolls_back:
        append_event(context, connection, rolled_back(launch, rollback, failure))


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
    begins_again = spec.program is not None and spec.program.resume == "never"
    saved_later = saved is not None and saved > attempt.start_step and not begins_again
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
        gets_further=not attempt.is_over_time or saved_later,
        at_once=attempt.preempted is not None
        or any(node.lost_at for node in launch.nodes)
        or (_is_lost(failure) and bool(launch.spares) and attempt.last_step > attempt.start_step),
    )


def _is_lost(failure: Failure | None) -> bool:
    return failure is not None and failure.reason == FailureReason.NODE_LOST


def _outcome(share: AttemptNode) -> AttemptOutcome:
    assert share.outcome is not None, "a share that has ended has an outcome"
    return share.outcome


def _move_job(context: Context, connection: Connection, launch: Launch, follow: FollowUp) -> None:
    job, now = launch.job, context.now()
    common: dict[str, Any] = {
        "reason": follow.shown,
        "pending": follow.pending,
        "desired": DesiredState.RUN.value if follow.pending else job.desired,
        "progress": job.progress.model_copy(update={"phase": None, "seconds_left": None}),
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
        retries_used=job.retries_used + follow.uses_retry,
        priority=resources.priority,
        world_size=layout.world_size,
        min_world_size=resources.min_world_size,
        max_world_size=resources.max_world_size,
        layout=job.spec.layout_name(layout),
        **common,
    )
    move(context, connection, event, queued)


def _brief(failure: Failure | None) -> Failure | None:
    """Return the failure without its traceback; the attempt's row has the traceback."""
    return replace(failure, traceback=None) if failure else None

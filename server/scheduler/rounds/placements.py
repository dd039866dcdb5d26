"""Writes the attempts of a round, many jobs in one transaction (docs/lifecycle-placing.md, 6)."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, bindparam, insert, text

from server.cluster.named_secrets.secret_uses import (
    SECRETS_REMEDY,
    ChosenSecret,
    SecretUse,
    chosen,
    in_words,
    opened,
)
from server.cluster.nodes.capacity import held_on
from server.cluster.placement.demand import Offer
from server.cluster.placement.pace import pace_digest
from server.core.context import Context
from server.core.database.rows import LaunchedJob
from server.core.database.tables import attempt_nodes, attempts, jobs
from server.core.errors import UnreadableError
from server.core.events.store import NewEvent
from server.core.lifecycle import job_to, move, move_jobs
from server.core.people.unix_accounts import accounts_of
from server.core.secrets import KeyFileError
from server.core.subject import SCHEDULER, Subject
from server.jobs.attempts.earlier_checkpoint import windows_left_out, windows_of_newest
from server.jobs.attempts.launch import Launch, newest_launch, release_kept, release_spares
from server.jobs.attempts.parent import ParentCheckpoint, newest_of_jobs, parent_of_launch
from server.jobs.jobs.checks import not_allowed
from server.jobs.queue.groups import Waiting, put_off
from server.jobs.ranks.node_findings import unchecked_nodes
from trainyard.base.problems import Problem
from trainyard.protocol.attempt import NodeAllocation
from trainyard.protocol.rest.event_data import JobEnded, Placed
from trainyard.protocol.rest.jobs import Progress
from trainyard.protocol.states import (
    AttemptCause,
    AttemptNodeState,
    AttemptState,
    DesiredState,
    JobState,
)
from trainyard.protocol.worker_messages import LaunchMessage
from trainyard.run.failures import REMEDIES, FailureReason
from trainyard.training.data_stream import Windows

PLACEMENT_LOCK = 7_301_004
PORTS = range(21_000, 29_000)
"""Ports for the rendezvous of an attempt's nodes. This range lies below torchrun's default port
(29,500), the ports of Kubernetes services (from 30,000), and the ports of outgoing connections on
Linux (from 32,768)."""

_LOCK_JOBS = (
    LaunchedJob.select()
    .where(jobs.c.id.in_(bindparam("ids", expanding=True)))
    # Every statement that locks several jobs locks them by id, so that no two deadlock.
    .order_by(jobs.c.id)
    .with_for_update(key_share=True)
)


@dataclass(frozen=True)
class Placement:
    """The slots that a round gives to a job."""

    job_id: str
    queued_at: datetime | None
    """Time at which the job was queued, as the round read it."""
    allocation: Sequence[NodeAllocation]
    """Shares of the attempt; the shares after the first `resources.nodes` are on spare nodes."""
    backfilled_before: str | None = None
    """If the job is backfilled, the name of the waiting job that keeps the same nodes; otherwise
    None."""
    expected_end_at: datetime | None = None
    """Expected end of the attempt; None if unknown."""
    gives_way: bool = False
    """Whether only the estimate `expected_end_at` allows the job to be backfilled."""


@dataclass(frozen=True)
class _Start:
    """The rows that a placement writes."""

    attempt: dict[str, Any]
    shares: list[dict[str, Any]]
    job: dict[str, Any]
    """Changed columns of the job."""
    former: Launch | None
    """The previous launch, if the job has kept spare nodes of this launch; otherwise None."""
    event: NewEvent


class _NotAllowedError(Exception):
    """The job may not start, also later."""

    def __init__(self, problems: Sequence[Problem], remedy: str) -> None:
        super().__init__(problems, remedy)
        self.problems = problems
        self.remedy = remedy


def place(
    context: Context, placements: Sequence[Placement], offers: Sequence[Offer]
) -> list[LaunchMessage]:
    """Write the attempts of several jobs, and return the launch messages.

    A job is left out if it changed since the round read it, or if one of its slots has been taken
    meanwhile. If a job is unreadable, or its environment variables cannot be decrypted, the job
    leaves the queue for a while, so that it does not block slots. A job that brings code fails if
    the server no longer allows code, and a job with secrets fails if one is gone or not permitted.

    Args:
        context: the server's context.
        placements: the slots of each job; no slot is in two placements.
        offers: the nodes, as read by the round.
    """
    by_job = {each.job_id: each for each in placements}
    by_name = {offer.node: offer for offer in offers}
    with context.database.write() as connection:
        lock_placement(context, connection)
        rows = LaunchedJob.all(connection, _LOCK_JOBS, {"ids": list(by_job)})
        names = {share.node for each in placements for share in each.allocation}
        held = held_on(connection, names, but_for=[job.id for job in rows if job.spare_slots])
        ran = [job.id for job in rows if job.attempt > 0]
        newest = newest_of_jobs(connection, ran)
        windows = windows_of_newest(connection, ran) if ran else {}
        secrets = _secrets(context, connection, rows)
        accounts = accounts_of(connection, {job.owner_id for job in rows})
        starts: list[_Start] = []
        unreadable: list[Waiting] = []
        refused: list[tuple[LaunchedJob, _NotAllowedError]] = []
        for job in rows:  # reads everything before the first write
            placement = by_job[job.id]
            if job.state != JobState.QUEUED or job.queued_at != placement.queued_at:
                continue
            account = accounts.get(job.owner_id)
            if not _is_possible(placement, by_name, held=held, account=account):
                continue
            try:
                # A job has problems only if it was stored when the server's settings allowed more.
                problems = not_allowed(context, context.secrets.restore(job.spec, job.env))
                if problems:
                    raise _NotAllowedError(problems, REMEDIES[FailureReason.NOT_ALLOWED].text)
                of_job = secrets.get(job.id)
                if isinstance(of_job, Exception):
                    raise of_job
                start = _start(
                    context,
                    connection,
                    job,
                    placement=placement,
                    offers=by_name,
                    newest=newest.get(job.id),
                    windows=windows.get(job.id, ()),
                    secrets=of_job,
                    account=account,
                )
                starts.append(start)
            except _NotAllowedError as not_legal:
                refused.append((job, not_legal))
            except (KeyFileError, UnreadableError) as error:
                unreadable.append((job.id, job.queued_at, error.detail))
        _order_checks(context, connection, starts)
        put_off(context, connection, unreadable)
        for job, why in refused:
            _end_not_allowed(context, connection, job=job, error=why)
        _write(context, connection, starts)
    return [
        LaunchMessage(attempt_id=share["attempt_id"], node=share["node"])
        for start in starts
        for share in start.shares
        if share["spare_since"] is None and not by_name[share["node"]].polls
    ]


def _is_possible(
    placement: Placement,
    offers: Mapping[str, Offer],
    *,
    held: Container[tuple[str, int]],
    account: str | None,
) -> bool:
    """Return whether slots and the account of the job's owner are still as the round read them."""
    needed = ((share.node, slot) for share in placement.allocation for slot in share.slots)
    if any(each in held for each in needed):
        return False
    given = (offers[share.node] for share in placement.allocation)
    return all(offer.why_not_as(account) is None for offer in given)


def _secrets(
    context: Context, connection: Connection, rows: Sequence[LaunchedJob]
) -> dict[str, list[ChosenSecret] | KeyFileError | _NotAllowedError]:
    """Return the versions of secrets for each job, or the error; jobs without any are omitted.

    The values are decrypted here, because a lost key must delay a job before it takes a node.
    """
    uses: dict[str, SecretUse] = {}
    for job in rows:
        with suppress(UnreadableError):  # the placement of this job meets the same error
            uses[job.id] = SecretUse.of_job(job)
    uses = {job_id: use for job_id, use in uses.items() if use.references}
    if not uses:
        return {}
    secrets, missing = chosen(connection, uses, context.now())
    found: dict[str, list[ChosenSecret] | KeyFileError | _NotAllowedError] = {
        job_id: _NotAllowedError(problems, SECRETS_REMEDY) for job_id, problems in missing.items()
    }
    for job_id, values in opened(context, connection, secrets).items():
        if isinstance(values, list):
            found[job_id] = _NotAllowedError(values, SECRETS_REMEDY)
        else:
            found[job_id] = values if isinstance(values, KeyFileError) else secrets[job_id]
    return found


def _write(context: Context, connection: Connection, starts: Sequence[_Start]) -> None:
    """Write attempts with their shares, and the state changes of their jobs."""
    if not starts:
        return
    for start in starts:
        if start.former is not None:
            release_spares(context, connection, start.former)
    connection.execute(insert(attempts), [start.attempt for start in starts])
    connection.execute(insert(attempt_nodes), [share for start in starts for share in start.shares])
    changed, events = [start.job for start in starts], [start.event for start in starts]
    move_jobs(context, connection, target=JobState.STARTING, rows=changed, events=events)


def lock_placement(context: Context, connection: Connection) -> None:
    """Serialize placements, including placements by a scheduler that no longer leads.

    Every placement takes this lock before the locks of jobs, so that no two placements deadlock.
    """
    if not context.database.is_sqlite:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": PLACEMENT_LOCK})


def _order_checks(context: Context, connection: Connection, starts: Sequence[_Start]) -> None:
    """Order a network check for attempts of several nodes if one was not checked for a day.

    The decision is the same for all nodes of an attempt, because otherwise some ranks would wait
    for the others forever.
    """
    nodes_of = [
        {share["node"] for share in start.shares if share["spare_since"] is None}
        for start in starts
    ]
    named = {name for names in nodes_of if len(names) > 1 for name in names}
    unchecked = unchecked_nodes(connection, named, context.now())
    for start, names in zip(starts, nodes_of, strict=True):
        start.attempt["check_network"] = len(names) > 1 and not unchecked.isdisjoint(names)


def _end_not_allowed(
    context: Context,
    connection: Connection,
    *,
    job: LaunchedJob,
    error: _NotAllowedError,
) -> None:
    release_kept(context, connection, job)
    reason = FailureReason.NOT_ALLOWED
    why = f"{reason}: {in_words(error.problems)}. {error.remedy}"
    message = f"{job.name} {JobState.FAILED}: {why}"
    data = JobEnded(state=JobState.FAILED, reason=why)
    event = NewEvent(data, SCHEDULER, Subject(job.id), message)
    values: dict[str, Any] = {"pending": None, "not_before": None, "reason": why}
    ended = job_to(job.id, JobState.FAILED, ended_at=context.now(), **values)
    move(context, connection, event, ended)


def _start(
    context: Context,
    connection: Connection,
    job: LaunchedJob,
    *,
    placement: Placement,
    offers: Mapping[str, Offer],
    newest: ParentCheckpoint | None,
    windows: Windows,
    secrets: Sequence[ChosenSecret] | None,
    account: str | None,
) -> _Start:
    """Return the rows of the attempt and its shares, and the job's new values; write nothing.

    `newest` is the newest usable checkpoint of the job. `windows` are the windows of data that the
    job's previous attempt skipped. `secrets` are the versions that its nodes get. `account` is the
    Unix account of the job's owner.
    """
    pending = job.pending
    assert pending is not None, "a queued job has a launch"
    spec = pending.overrides.apply_but_schedule(job.spec)
    layout = spec.layout_name(pending.layout)
    parent = parent_of_launch(connection, job, pending, newest=newest)
    skip = windows_left_out(connection, pending, checkpoint_id=parent.id, previous=windows)
    # For a rollback, the server has chosen the checkpoint.
    by_a_person = pending.checkpoint_id is not None and pending.cause != AttemptCause.RETRY
    # The row of the job has the digest of the submitted spec.
    digest = job.pace_digest if spec is job.spec else None
    first = offers[placement.allocation[0].node]
    ranks = placement.allocation[: spec.resources.nodes]
    spares = placement.allocation[len(ranks) :]
    bound = spec.resources.max_runtime_seconds
    now, attempt_id, number = context.now(), context.new_id(), job.attempt + 1
    attempt = {
        "id": attempt_id,
        "job_id": job.id,
        "number": number,
        "cause": pending.cause.value,
        "actor": pending.actor,
        "state": AttemptState.PLACED.value,
        "desired": DesiredState.RUN.value,
        "layout": pending.layout,
        "device": first.device,
        "overrides": pending.overrides,
        "micro_batch_size": spec.training.micro_batch_size,
        "parent_checkpoint_id": parent.id,
        "start_step": parent.step,
        "allow_code_change": pending.allow_code_change,
        "parent_named": pending.parent_named or by_a_person,
        "skip": skip,
        "secrets": None if secrets is None else [each.model_dump() for each in secrets],
        "owner_id": job.owner_id,
        "account": None if first.accounts is None else account,
        "last_step": parent.step,
        "rendezvous_port": _rendezvous_port(attempt_id),
        "check_network": False,
        "pace_digest": digest or pace_digest(spec),
        "expected_end_at": placement.expected_end_at,
        "gives_way": placement.gives_way,
        "runs_until": None if bound is None else now + timedelta(seconds=bound),
        "created_at": now,
    }
    shares = [
        {
            "attempt_id": attempt_id,
            "node": share.node,
            "node_rank": share.node_rank,
            "slots": share.slots,
            "state": state.value,
            "sent_at": None if state == AttemptNodeState.SPARE else now,
            "spare_since": now if state == AttemptNodeState.SPARE else None,
        }
        for state, part in ((AttemptNodeState.PLACED, ranks), (AttemptNodeState.SPARE, spares))
        for share in part
    ]
    values = {
        "id": job.id,
        "pending": None,
        "reason": None,
        "not_before": None,
        "desired": DesiredState.RUN.value,
        "attempt": number,
        "world_size": pending.layout.world_size,
        "min_world_size": spec.resources.min_world_size,
        "max_world_size": spec.resources.max_world_size,
        "spare_nodes": spec.resources.spare_nodes,
        "spare_slots": sum(len(share.slots) for share in spares),
        "layout": layout,
        "storage": first.roots.get(spec.checkpoint.root),
        "started_at": job.started_at or now,
        "progress": Progress(step=parent.step, steps=spec.total_steps),
    }
    nodes, reserved = (tuple(share.node for share in part) for part in (ranks, spares))
    event = NewEvent(
        Placed(
            layout=layout,
            nodes=nodes,
            spares=reserved,
            parent_checkpoint_id=parent.id,
            start_step=parent.step,
            backfilled_before=placement.backfilled_before,
        ),
        SCHEDULER,
        Subject(job.id, attempt=number),
        f"Attempt {number} got {pending.layout.slots_in_words} on {', '.join(nodes)}"
        + (f", with {', '.join(reserved)} in reserve" if reserved else "")
        + (f", backfilled before {before}" if (before := placement.backfilled_before) else ""),
    )
    keeps = newest_launch(connection, job.id) if job.spare_slots else None
    return _Start(attempt, shares, values, keeps, event)


def _rendezvous_port(attempt_id: str) -> int:
    """Return a port that depends only on the attempt's id."""
    digest = hashlib.sha256(attempt_id.encode()).digest()
    return PORTS[int.from_bytes(digest[:8]) % len(PORTS)]

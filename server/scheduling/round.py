"""The placement round: reads the queue, decides, writes each attempt, then sends messages."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, insert, select, text

from server.attempts.parent import parent_of_launch
from server.attempts.rollback import windows_left_out
from server.context import Context
from server.database.engine import LeadLostError
from server.database.rows import Job
from server.database.tables import attempt_nodes, attempts, jobs
from server.errors import UnreadableError
from server.events.store import NewEvent
from server.jobs.checks import not_allowed
from server.lifecycle import job_to, lock_job, move
from server.nodes.capacity import read_capacity
from server.placement.decide import decide
from server.placement.demand import Holding, Offer
from server.placement.quotas import Quota
from server.projects.quotas import read_quotas
from server.projects.usage import ReadUsage, read_usage
from server.queue.groups import enter_groups, explain, group_sizes, put_off, read_heads
from server.scheduling.dispatch import Dispatcher
from server.scheduling.recovery_wait import held_back
from server.scheduling.victims import order_to_leave
from server.secrets import KeyFileError
from server.subject import SCHEDULER, Subject
from trainyard.base.problems import Problem
from trainyard.protocol.attempt import NodeAllocation
from trainyard.protocol.rest.event_data import JobEnded, Placed
from trainyard.protocol.rest.jobs import PendingLaunch, Progress
from trainyard.protocol.states import (
    AttemptCause,
    AttemptNodeState,
    AttemptState,
    DesiredState,
    JobState,
)
from trainyard.protocol.worker_messages import LaunchMessage
from trainyard.run.failures import REMEDIES, FailureReason

logger = logging.getLogger(__name__)

PLACEMENT_LOCK = 7_301_004
DECIDE_AGAIN_AFTER = timedelta(seconds=10)
"""Pause after which a round that placed nothing is made again though nothing changed but time."""
PORTS = range(21_000, 29_000)
"""Where the nodes of an attempt meet: below what Linux gives to outgoing connections (from 32,768),
Kubernetes to its services (from 30,000) and torchrun to launches by hand (29,500)."""


class Placer:
    """Places queued jobs, round by round."""

    def __init__(
        self, context: Context, dispatcher: Dispatcher, usage: ReadUsage = read_usage
    ) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._usage = usage
        # The last round placed nothing: the next cannot either while groups, offers and quotas are
        # equal, until time has passed: expected ends change, and attempts may be preempted.
        self._hopeless: tuple[dict[str, int], list[Offer], Mapping[str, Quota]] | None = None
        self._hopeless_until = datetime.min.replace(tzinfo=UTC)
        self._victims: Mapping[str, Sequence[Holding]] = {}

    def run(self) -> int:
        """Place what can be placed, store why the rest waits, and return how many were placed."""
        context = self._context
        new, now = enter_groups(context, without=held_back(context)), context.now()
        with context.database.read() as connection:
            sizes = group_sizes(connection)
            if not sizes:
                return 0
            capacity = read_capacity(connection, now)
            offers = capacity.offers
            quotas = read_quotas(connection, now, usage=self._usage)
            known = (sizes, offers, quotas) == self._hopeless and now < self._hopeless_until
            if known and not new:
                return 0
            free = sum(len(offer.free) for offer in offers)
            heads = read_heads(connection, groups=len(sizes), free_slots=free)
        queue = [row.queued for row in heads.rows]
        settings = context.settings
        decisions = decide(
            queue,
            offers,
            holdings=capacity.holdings,
            now=now,
            preempt_after=timedelta(seconds=settings.preempt_after_seconds)
            if settings.preemption
            else None,
            cut=heads.cut,
            quotas=quotas,
        )
        messages: list[LaunchMessage] = []
        for row in heads.rows:
            allocation = decisions.placed.get(row.id)
            if allocation is None:
                continue
            try:
                messages += place_job(
                    context,
                    row.id,
                    row.queued_at,
                    allocation,
                    offers,
                    backfilled_before=decisions.backfilled.get(row.id),
                )
            except LeadLostError:
                raise
            except Exception:  # an error of one job must not keep the others from their slots
                logger.exception("job %s could not be placed", row.id)
        for message in messages:  # after the commits: a claim must find its attempt
            self._dispatcher.send(message)
        explain(context, heads, decisions.waiting, new=new)
        self._victims = decisions.victims
        self._hopeless = None if decisions.placed else (sizes, offers, quotas)
        self._hopeless_until = now + DECIDE_AGAIN_AFTER
        return len(decisions.placed)

    def preempt(self) -> int:
        """Order attempts to leave as the round decided, and return how many were ordered.

        A part of its own, after elastic jobs that wait got a size that fits: these need no victims.
        """
        victims, self._victims = self._victims, {}
        ordered = 0
        for job_id, holdings in victims.items():
            try:
                ordered += order_to_leave(self._context, job_id, holdings)
            except LeadLostError:
                raise
            except Exception:  # an error of one job must not keep the others from their slots
                logger.exception("no attempt could be ordered to leave for job %s", job_id)
        return ordered


def place_job(
    context: Context,
    job_id: str,
    queued_at: datetime | None,
    allocation: Sequence[NodeAllocation],
    offers: Sequence[Offer],
    *,
    backfilled_before: str | None = None,
) -> list[LaunchMessage]:
    """Write an attempt; return its messages, or none when the job or a slot changed since.

    A job that cannot be read, or whose environment cannot be decrypted, leaves the queue for a
    while, so that it keeps no slots from others.

    Args:
        context: the server's surroundings.
        job_id: the job.
        queued_at: since when it was queued when it was read.
        allocation: its slots.
        offers: the nodes, as they were read.
        backfilled_before: name of the waiting job on whose nodes it starts.
    """
    with context.database.write() as connection:
        _lock_placement(context, connection)
        lock_job(connection, job_id)
        job = Job.one(connection, Job.select().where(jobs.c.id == job_id))
        if job.state != JobState.QUEUED or job.queued_at != queued_at:
            return []
        if not _still_free(connection, allocation):
            return []
        try:
            if not _may_start(context, connection, job):
                return []
            attempt_id = _write_attempt(
                context, connection, job, allocation, offers, backfilled_before
            )
        except (KeyFileError, UnreadableError) as error:  # all is read before the first write
            put_off(context, connection, [(job.id, job.queued_at, error.detail)])
            return []
    return [LaunchMessage(attempt_id=attempt_id, node=share.node) for share in allocation]


def rendezvous_port(attempt_id: str) -> int:
    """Return the port at which the nodes of an attempt meet, the same for each of them."""
    digest = hashlib.sha256(attempt_id.encode()).digest()
    return PORTS[int.from_bytes(digest[:8]) % len(PORTS)]


def _lock_placement(context: Context, connection: Connection) -> None:
    """Serialize placements, also those that hold no lead.

    Taken before the job's lock, in every placement, so that the two locks have one order.
    """
    if not context.database.is_sqlite:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": PLACEMENT_LOCK})


def _still_free(connection: Connection, allocation: Sequence[NodeAllocation]) -> bool:
    held = connection.execute(
        select(attempt_nodes.c.node, attempt_nodes.c.slots).where(
            attempt_nodes.c.node.in_([share.node for share in allocation]),
            attempt_nodes.c.state != AttemptNodeState.ENDED,
        )
    ).all()
    wanted = {(share.node, slot) for share in allocation for slot in share.slots}
    return not wanted & {(row.node, slot) for row in held for slot in row.slots}


def _may_start(context: Context, connection: Connection, job: Job) -> bool:
    """Return whether a job may still start; one stored when the server allowed more ends."""
    problems = not_allowed(context, context.secrets.restore(job.spec, job.env))
    if problems:
        _end_not_allowed(context, connection, job, problems)
    return not problems


def _end_not_allowed(
    context: Context, connection: Connection, job: Job, problems: Sequence[Problem]
) -> None:
    reason = FailureReason.NOT_ALLOWED
    what = "; ".join(f"{p.pointer[1:].replace('/', '.')}: {p.detail}" for p in problems)
    why = f"{reason}: {what}. {REMEDIES[reason].text}"
    event = NewEvent(
        JobEnded(state=JobState.FAILED, reason=why),
        SCHEDULER,
        Subject(job.id),
        f"{job.name} {JobState.FAILED}: {why}",
    )
    move(
        context,
        connection,
        event,
        job_to(
            job.id,
            JobState.FAILED,
            ended_at=context.now(),
            pending=None,
            not_before=None,
            reason=why,
        ),
    )


def _write_attempt(
    context: Context,
    connection: Connection,
    job: Job,
    allocation: Sequence[NodeAllocation],
    offers: Sequence[Offer],
    backfilled_before: str | None,
) -> str:
    """Write the attempt, its nodes and the job's move; return the attempt's id."""
    pending = job.pending
    assert pending is not None, "a queued job has a launch"
    spec = pending.overrides.apply(job.spec)
    parent = parent_of_launch(connection, job.id, pending, forked_from=job.forked_from)
    first = next(offer for offer in offers if offer.node == allocation[0].node)
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
        "parent_named": _is_named(pending),
        "skip": windows_left_out(connection, job, pending, parent.id),
        "last_step": parent.step,
        "rendezvous_port": rendezvous_port(attempt_id),
        "created_at": now,
    }
    connection.execute(insert(attempts).values(attempt))
    shares = [
        {
            "attempt_id": attempt_id,
            "node": share.node,
            "node_rank": share.node_rank,
            "slots": share.slots,
            "state": AttemptNodeState.PLACED.value,
            "sent_at": now,
        }
        for share in allocation
    ]
    connection.execute(insert(attempt_nodes), shares)
    values: dict[str, Any] = {
        "pending": None,
        "reason": None,
        "not_before": None,
        "desired": DesiredState.RUN.value,
        "attempt": number,
        "world_size": pending.layout.world_size,
        "min_world_size": spec.resources.min_world_size,
        "max_world_size": spec.resources.max_world_size,
        "layout": str(pending.layout),
        "storage": first.roots.get(spec.checkpoint.root),
        "started_at": job.started_at or now,
        "progress": Progress(step=parent.step, steps=spec.training.steps),
    }
    nodes = tuple(share.node for share in allocation)
    event = NewEvent(
        Placed(
            layout=str(pending.layout),
            nodes=nodes,
            parent_checkpoint_id=parent.id,
            start_step=parent.step,
            backfilled_before=backfilled_before,
        ),
        SCHEDULER,
        Subject(job.id, attempt=number),
        f"Attempt {number} got {pending.layout.slots_in_words} on {', '.join(nodes)}"
        + (f", backfilled before {backfilled_before}" if backfilled_before else ""),
    )
    move(context, connection, event, job_to(job.id, JobState.STARTING, **values))
    return attempt_id


def _is_named(pending: PendingLaunch) -> bool:
    """Return whether a person chose the checkpoint; a rollback's is chosen by the server."""
    by_a_person = pending.checkpoint_id is not None and pending.cause != AttemptCause.RETRY
    return pending.parent_named or by_a_person

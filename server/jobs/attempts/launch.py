"""A launch: a job, an attempt and the attempt's shares, read together under the job's lock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, bindparam, delete, exists, func, select, type_coerce, update

from server.cluster.projects.usage import EndedShare, settle_share
from server.core.context import Context
from server.core.database.column_types import Json, text_of
from server.core.database.rows import Attempt, AttemptNode, Job, LaunchedJob
from server.core.database.tables import attempt_nodes, attempts, checkpoints, jobs
from server.core.errors import ConflictError, NotFoundError, UnreadableError
from server.core.lifecycle import lock_job_of
from server.core.subject import SCHEDULER, Subject
from server.jobs.attempts.retry_policy import MAX_PUT_BACKS
from trainyard.protocol.states import AttemptCause, AttemptNodeState
from trainyard.run.failures import Failure
from trainyard.spec.auto import resolved
from trainyard.spec.job import JobSpec


@dataclass(frozen=True)
class Launch:
    """A job, one attempt of the job, and the shares of that attempt, sorted by node rank."""

    job: Job
    attempt: Attempt
    nodes: Sequence[AttemptNode]
    """Shares with ranks."""
    spares: Sequence[AttemptNode]
    """Shares on spare nodes."""

    @property
    def subject(self) -> Subject:
        """The subject of the attempt's events."""
        return Subject(self.job.id, attempt=self.attempt.number)

    @property
    def live(self) -> list[AttemptNode]:
        """Shares that are neither ended nor lost; they must end before the attempt ends."""
        ended = AttemptNodeState.ENDED
        return [node for node in self.nodes if node.state != ended and node.lost_at is None]


# Statements are built once, because building a statement takes longer than running it.
_ATTEMPTS_AND_JOBS = (
    select(*Attempt.columns(), *Job.columns())
    .join_from(attempts, jobs, jobs.c.id == attempts.c.job_id)
    .where(attempts.c.id.in_(bindparam("attempt_ids", expanding=True)))
)
_SHARES = (
    AttemptNode.select()
    .where(attempt_nodes.c.attempt_id.in_(bindparam("attempt_ids", expanding=True)))
    .order_by(attempt_nodes.c.node_rank)
)


def read_launch(connection: Connection, attempt_id: str) -> Launch:
    """Read an existing attempt with its job and its shares."""
    return read_launches(connection, [attempt_id])[attempt_id]


def read_launches(connection: Connection, attempt_ids: Sequence[str]) -> Mapping[str, Launch]:
    """Read attempts by id, in two queries; unknown attempts are omitted."""
    given, of_job = {"attempt_ids": attempt_ids}, len(Attempt.columns())
    rows = connection.execute(_ATTEMPTS_AND_JOBS, given).all()
    shares: defaultdict[tuple[str, bool], list[AttemptNode]] = defaultdict(list)
    for share in AttemptNode.all(connection, _SHARES, given):
        shares[share.attempt_id, share.state == AttemptNodeState.SPARE].append(share)
    launches = {}
    for row in rows:
        attempt, job = Attempt(*row[:of_job]), Job(*row[of_job:])
        nodes, spares = shares[attempt.id, False], shares[attempt.id, True]
        launches[attempt.id] = Launch(job, attempt, nodes, spares)
    return launches


def settle(context: Context, connection: Connection, *, launch: Launch, share: AttemptNode) -> None:
    """Record the slots that an ending share held until now."""
    since = share.spare_since or launch.attempt.created_at
    settle_share(
        context,
        connection,
        EndedShare(
            attempt_id=launch.attempt.id,
            node=share.node,
            job_id=launch.job.id,
            job_name=launch.job.name,
            project=launch.job.project,
            attempt=launch.attempt.number,
            slots=len(share.slots),
            since=since,
            until=max(context.now(), since),  # the clock may have been set back
            spare=share.spare_since is not None,
        ),
    )


def release_spares(
    context: Context,
    connection: Connection,
    launch: Launch,
    *,
    nodes: Collection[str] | None = None,
) -> None:
    """Release spare nodes of an attempt (default: all of them); the caller holds the job's lock.

    The shares of these nodes are deleted, because the attempt may reserve the same nodes again.
    """
    released = [spare for spare in launch.spares if nodes is None or spare.node in nodes]
    if not released:
        return
    share = attempt_nodes.c
    spares = (share.attempt_id == launch.attempt.id) & (share.state == AttemptNodeState.SPARE)
    names = [spare.node for spare in released]
    connection.execute(delete(attempt_nodes).where(spares, share.node.in_(names)))
    for spare in released:
        settle(context, connection, launch=launch, share=spare)
    fewer = jobs.c.spare_slots - sum(len(spare.slots) for spare in released)
    connection.execute(update(jobs).where(jobs.c.id == launch.job.id).values(spare_slots=fewer))


def release_kept(context: Context, connection: Connection, job: LaunchedJob) -> None:
    """Release the spare nodes that a locked, queued job keeps to replace a lost node."""
    if job.spare_slots:
        release_spares(context, connection, newest_launch(connection, job.id))


def locked_share(connection: Connection, attempt_id: str, node: str) -> AttemptNode | None:
    """Lock the job of an attempt, and return a node's share with ranks, or None if it is gone."""
    try:
        lock_job_of(connection, attempt_id)
    except NotFoundError:
        return None
    shares = read_launch(connection, attempt_id).nodes
    return next((share for share in shares if share.node == node), None)


def submitted_spec(connection: Connection, job_id: str) -> JobSpec:
    """Return the submitted spec of a job, without `env` and project.

    Raises:
        UnreadableError: another version stored the spec.
    """
    stored = connection.execute(select(jobs.c.spec).where(jobs.c.id == job_id)).scalar_one()
    spec: JobSpec = stored.read(f"spec of job {job_id}")
    return spec


def effective_spec(connection: Connection, attempt_id: str) -> JobSpec:
    """Return an attempt's effective spec without `env`: overrides applied, each `auto` resolved.

    Raises:
        UnreadableError: another version stored the spec or the overrides.
    """
    columns = (jobs.c.id, jobs.c.spec, attempts.c.overrides, attempts.c.device, attempts.c.layout)
    query = select(*columns).join(attempts, attempts.c.job_id == jobs.c.id)
    row = connection.execute(query.where(attempts.c.id == attempt_id)).one()
    overrides = row.overrides.read(f"overrides of attempt {attempt_id}")
    return resolved(overrides.apply(row.spec.read(f"spec of job {row.id}")), row.device, row.layout)


def newest_attempt_id(connection: Connection, job_id: str) -> str | None:
    """Return the id of a job's newest attempt; None before the first attempt."""
    mine = select(attempts.c.id).where(attempts.c.job_id == job_id)
    return connection.scalar(mine.order_by(attempts.c.number.desc()).limit(1))


def failures_in_a_row(connection: Connection, launch: Launch, failure: Failure | None) -> int:
    """Return the number of attempts since the last start by a person, including the ending attempt.

    The attempt that the person started counts, too. If the attempt that ends now is put back, only
    this attempt and at most `MAX_PUT_BACKS` put-backs directly before it count, because the pause
    after a put-back depends only on put-backs.
    """
    mine, newest = attempts.c.job_id == launch.job.id, launch.attempt.number
    of_a_person = (attempts.c.cause != AttemptCause.RETRY, attempts.c.actor != SCHEDULER.name)
    started = select(func.max(attempts.c.number)).where(mine, *of_a_person)
    first = connection.scalar(started) or newest
    if failure is None or not failure.free_retry:
        return newest - first + 1
    # The failures are not validated, because another version may have stored an unreadable one.
    before = connection.scalars(
        select(type_coerce(attempts.c.failure, Json))
        .where(mine, attempts.c.number.between(first, newest - 1))
        .order_by(attempts.c.number.desc())
        .limit(MAX_PUT_BACKS)
    )
    return 1 + sum(1 for _ in takewhile(_is_put_back, before))


def _is_put_back(failure: Any) -> bool:
    return isinstance(failure, dict) and failure.get("free_retry") is True


def runs_program(job: Job) -> bool:
    """Return whether the job runs a program; False if its spec is unreadable."""
    try:
        return job.spec.program is not None
    except UnreadableError:
        return False


def begun_before(connection: Connection, attempt: Attempt) -> bool:
    """Return whether any earlier attempt of the same job has started ranks.

    Ranks that ended before the first report on them appear only in the exit record of their share.
    """
    ranks = text_of(connection, attempt_nodes.c.exit, "ranks")
    ended = exists().where(attempt_nodes.c.attempt_id == attempts.c.id, ranks != "[]")
    begun = exists().where(
        attempts.c.job_id == attempt.job_id,
        attempts.c.number < attempt.number,
        attempts.c.started_at.is_not(None) | ended,
    )
    return bool(connection.scalar(select(begun)))


def newest_launch(connection: Connection, job_id: str) -> Launch:
    """Return the newest launch of a job that has at least one attempt."""
    attempt_id = newest_attempt_id(connection, job_id)
    assert attempt_id is not None, "it was placed"
    return read_launch(connection, attempt_id)


def refuse_while_held(connection: Connection, job: Job) -> None:
    """Refuse to delete a job while a lost node may run its ranks.

    The rows of the job hold the slots of these ranks.

    Raises:
        ConflictError: a lost node may run ranks; the message names the nodes.
    """
    share = attempt_nodes.c
    query = select(share.node).join(attempts, attempts.c.id == share.attempt_id)
    unended = query.where(attempts.c.job_id == job.id, share.state != AttemptNodeState.ENDED)
    held = connection.scalars(unended.order_by(share.node)).all()
    if held:
        raise ConflictError(
            f"{', '.join(held)} may still run ranks of {job.name}: its rows hold the slots until "
            "the node reports, or until retry.node_lost_after_seconds of silence"
        )


def newest_saved_step(connection: Connection, attempt_id: str) -> int | None:
    """Return the step of an attempt's newest committed checkpoint; None without a checkpoint."""
    newest = select(func.max(checkpoints.c.step)).where(checkpoints.c.attempt_id == attempt_id)
    saved: int | None = connection.scalar(newest)
    return saved

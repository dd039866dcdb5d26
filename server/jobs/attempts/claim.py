"""Claims of shares: a worker launches its node's share only after a successful claim."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, select

from server.api.auth.tokens import TokenKind, hash_token, make_token
from server.cluster.named_secrets.secret_uses import (
    SECRETS_REMEDY,
    ChosenSecret,
    SecretValues,
    in_words,
    opened,
    owners_who_may_use,
    without_right,
)
from server.cluster.nodes.workers import refuse_other_worker, registered_workers
from server.core.audit.request_rows import append_rows, system_row
from server.core.context import Context
from server.core.database.rows import Attempt, AttemptNode, Job
from server.core.database.tables import checkpoints, nodes
from server.core.errors import ConflictError, NotFoundError, RefusalError
from server.core.events.store import NewEvent
from server.core.leases import NODE_LEASES
from server.core.lifecycle import Move, attempt_to, lock_jobs_of, move_all, no_attempt, node_to
from server.core.secrets import KeyFileError
from server.core.subject import SERVER, Actor
from server.jobs.attempts.finish import end_nodes
from server.jobs.attempts.launch import Launch, begun_before, read_launches
from server.jobs.attempts.retry_policy import NodeEnd
from trainyard.protocol.attempt import AttemptSpec, NodeAllocation, ResumePoint
from trainyard.protocol.audit_log.views import AuditOutcome
from trainyard.protocol.rest.event_data import Claimed
from trainyard.protocol.resume_parts import ALL_PARTS
from trainyard.protocol.states import AttemptNodeState, AttemptOutcome, AttemptState, DesiredState
from trainyard.protocol.user_accounts.secret_views import DeliveredSecret, SecretsDelivered
from trainyard.protocol.worker_messages import (
    SECRETS_PROTOCOL,
    Claim,
    ClaimReply,
    WorkerIdentity,
)
from trainyard.run.failures import Failure, FailureReason, Remedy
from trainyard.spec.rules import fields_with_code


@dataclass(frozen=True)
class _Secrets:
    """The secrets of an attempt."""

    chosen: Sequence[ChosenSecret]
    values: SecretValues = field(repr=False)


class _RefusedShareError(ConflictError):
    """The share must end, because it cannot get its secrets."""

    def __init__(self, attempt_id: str, node: str, why: str) -> None:
        super().__init__(f"attempt {attempt_id} must not run: {why}")
        remedy = Remedy(text=SECRETS_REMEDY)
        self.failure = Failure(
            reason=FailureReason.NOT_ALLOWED, message=why, node=node, remedy=remedy
        )


def claim_all(
    context: Context, sent: Sequence[tuple[str, Claim]]
) -> list[ClaimReply | RefusalError]:
    """Claim shares of different attempts in one transaction, and return each reply or error.

    The launch message to the worker is only a hint, because a message may be old, duplicated or
    forged. Spec and parent checkpoint come from the database, read in the transaction of the claim.
    Only the first of several claims succeeds. A repeat with the same secret changes nothing and
    gets the same reply, because the first reply may have been lost.

    The error is a `NotFoundError` if there is no such attempt, or if the node has no share of the
    attempt. It is a `ConflictError` if another claim came first, the share has ended, the attempt
    is ordered to end, its parent checkpoint is gone, or another worker serves the node. It is an
    `UnreadableError` or a `KeyFileError` if the spec, `env` or a secret cannot be read. If a secret
    of the attempt was deleted after the placement, if the owner may no longer use it, or if the
    worker takes no secrets, the share ends as failed, and the error is a `ConflictError`.

    Args:
        context: the server's context.
        sent: attempt ids, each with the claim of a node.
    """
    attempt_ids = [attempt_id for attempt_id, _ in sent]
    taken: list[tuple[list[Move], NewEvent]] = []
    replies: list[ClaimReply | RefusalError] = []
    refused: defaultdict[str, list[NodeEnd]] = defaultdict(list)
    with context.database.write() as connection:
        lock_jobs_of(connection, attempt_ids)  # before the read, as a stop may come meanwhile
        launches = read_launches(connection, attempt_ids)
        workers = registered_workers(connection, [claim.node for _, claim in sent])
        secrets = _secrets(context, connection, launches)
        for attempt_id, claim in sent:
            try:
                if attempt_id not in launches:
                    raise no_attempt(attempt_id)
                reply, takes = _answer(
                    context,
                    connection,
                    launch=launches[attempt_id],
                    claim=claim,
                    workers=workers,
                    secrets=secrets.get(attempt_id),
                )
            except RefusalError as error:
                replies.append(error)
                if isinstance(error, _RefusedShareError):
                    end = NodeEnd(claim.node, AttemptOutcome.FAILED, error.failure)
                    refused[attempt_id].append(end)
            else:
                replies.append(reply)
                taken += takes
        if taken:
            moves = [each for takes, _ in taken for each in takes]
            move_all(context, connection, moves=moves, events=[event for _, event in taken])
            projects = {each.job.id: each.job.project for each in launches.values()}
            append_rows(connection, _delivered(context, [e for _, e in taken], projects))
        for attempt_id, ends in refused.items():  # last: an end moves other shares of the attempt
            end_nodes(context, connection, attempt_id, ends, actor=SERVER)
    return replies


def _answer(
    context: Context,
    connection: Connection,
    *,
    launch: Launch,
    claim: Claim,
    workers: Mapping[str, WorkerIdentity | None],
    secrets: _Secrets | None,
) -> tuple[ClaimReply, list[tuple[list[Move], NewEvent]]]:
    """Return the reply to a claim, and the state changes with their event (none for a repeat)."""
    token = make_token(TokenKind.ATTEMPT, claim.secret)
    share = next((n for n in launch.nodes if n.node == claim.node), None)
    if share is None:
        raise NotFoundError(f"node {claim.node!r} has no share of attempt {launch.attempt.id!r}")
    if claim.node in workers:
        refuse_other_worker(claim.node, claim.worker, registered=workers[claim.node])
    token_hash = hash_token(token)
    repeats = share.state in NODE_LEASES.held and share.token_hash == token_hash
    # A repeated reply to an attempt that ends must not have its secrets.
    if launch.attempt.desired != DesiredState.RUN and (not repeats or secrets is not None):
        state = launch.attempt.state
        raise ConflictError(f"attempt {launch.attempt.id} is {state} and must not run")
    claimed = node_to(
        launch.attempt.id,
        claim.node,
        AttemptNodeState.CLAIMED,
        token_hash=token_hash,
        worker=claim.worker,
        **NODE_LEASES.claim(context.now()),
    )
    if not repeats:
        claimed.check(share.state)
    values = {} if secrets is None else _values(secrets, share, claim)
    reply = _reply(context, connection, launch, node_rank=share.node_rank, token=token)
    reply = reply.model_copy(update={"secrets": values})
    if repeats:
        return reply, []
    moves = [claimed]
    if launch.attempt.state == AttemptState.PLACED:  # this is the first claim
        tainted = bool(fields_with_code(reply.spec))
        moves.append(attempt_to(launch.attempt.id, AttemptState.STARTING, tainted=tainted))
    count = f"{len(share.slots)} slot{'s' * (len(share.slots) != 1)}"
    words, subject = f"{claim.node} took on {count}", launch.subject.on(claim.node)
    taken = [(moves, NewEvent(Claimed(), Actor(claim.node), subject, words))]
    if secrets is not None:
        named = ", ".join(f"{e.variable} ({e.name!r}, version {e.version})" for e in secrets.chosen)
        data = SecretsDelivered(
            secrets=tuple(
                DeliveredSecret(**each.model_dump(exclude={"secret_id"})) for each in secrets.chosen
            )
        )
        words = f"{claim.node} got secrets: {named}"
        taken.append(([], NewEvent(data, Actor(claim.node), subject, words)))
    return reply, taken


def _delivered(
    context: Context, events: Sequence[NewEvent], projects: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the audit log for deliveries of secrets, with the projects of the jobs."""
    for event in events:
        job_id = event.subject.job_id
        if isinstance(event.data, SecretsDelivered) and job_id is not None:
            named = {"name": [each.name for each in event.data.secrets]}
            about, read = f"jobs/{job_id}", AuditOutcome.READ
            row = system_row(context, "secrets_delivered", outcome=read, object=about, after=named)
            yield row | {"token": event.subject.node, "project": projects[job_id]}


def _secrets(
    context: Context, connection: Connection, launches: Mapping[str, Launch]
) -> dict[str, _Secrets]:
    """Read the secrets of attempts, in two queries; attempts without secrets are omitted."""
    chosen = {
        attempt_id: [ChosenSecret.model_validate(each) for each in launch.attempt.secrets]
        for attempt_id, launch in launches.items()
        if launch.attempt.secrets is not None
    }
    if not chosen:
        return {}
    values = opened(context, connection, chosen)
    owners = {id_: (launches[id_].job.owner_id, launches[id_].job.project) for id_ in chosen}
    may = owners_who_may_use(connection, {*owners.values()}, context.now())
    for attempt_id, (_, project) in owners.items():
        if owners[attempt_id] not in may:
            variables = (each.variable for each in chosen[attempt_id])
            values[attempt_id] = without_right(variables, project)
    return {attempt_id: _Secrets(some, values[attempt_id]) for attempt_id, some in chosen.items()}


def _values(secrets: _Secrets, share: AttemptNode, claim: Claim) -> Mapping[str, str]:
    """Return the values for a share.

    Raises:
        KeyFileError: a value cannot be decrypted; a later claim may succeed.
        ConflictError: the attempt must not start, or the worker is too old. A share that does not
            run yet must end (`_RefusedShareError`).
    """
    values = secrets.values
    if isinstance(values, KeyFileError):
        raise values
    if isinstance(values, Mapping) and claim.protocol >= SECRETS_PROTOCOL:
        return values
    why = f"the worker of {claim.node} takes no secrets, because its version is too old"
    if not isinstance(values, Mapping):
        why = in_words(values)
    if share.state == AttemptNodeState.RUNNING:
        raise ConflictError(f"attempt {share.attempt_id} gets no values again: {why}")
    raise _RefusedShareError(share.attempt_id, claim.node, why)


def _reply(
    context: Context, connection: Connection, launch: Launch, *, node_rank: int, token: str
) -> ClaimReply:
    """Return the reply with spec and token; the database stores only the hash of the token."""
    attempt, job = launch.attempt, launch.job
    addresses = _addresses(connection, launch) if len(launch.nodes) > 1 else ()
    return ClaimReply(
        spec=context.secrets.restore(job.spec, job.env),
        attempt=AttemptSpec(
            job_id=job.id,
            attempt=attempt.number,
            layout=attempt.layout,
            overrides=attempt.overrides,
            device=attempt.device,
            allocation=tuple(
                NodeAllocation(node=n.node, node_rank=n.node_rank, slots=tuple(n.slots))
                for n in launch.nodes
            ),
            resume=_resume_point(connection, job, attempt),
            begun_before=job.spec.program is not None and begun_before(connection, attempt),
            skip=attempt.skip,
            check_network=attempt.check_network,
        ),
        attempt_token=token,
        node_rank=node_rank,
        # On one node, torchrun chooses a free port. Several nodes must use the same port.
        rendezvous=f"{addresses[0]}:{attempt.rendezvous_port}" if addresses else "127.0.0.1:0",
        addresses=addresses,
        lease_seconds=context.settings.lease_seconds,
        report_seconds=context.settings.report_seconds,
        account=attempt.account,
    )


def _addresses(connection: Connection, launch: Launch) -> tuple[str, ...]:
    names = [node.node for node in launch.nodes]
    columns = select(nodes.c.name, nodes.c.address).where(nodes.c.name.in_(names))
    found = dict(connection.execute(columns).all())
    return tuple(found[name] for name in names)


def _resume_point(connection: Connection, job: Job, attempt: Attempt) -> ResumePoint | None:
    checkpoint_id = attempt.parent_checkpoint_id
    if checkpoint_id is None:
        return None
    columns = (checkpoints.c.path, checkpoints.c.step, checkpoints.c.metadata_digest)
    row = connection.execute(
        select(*columns).where(checkpoints.c.id == checkpoint_id)
    ).one_or_none()
    if row is None:
        raise ConflictError(f"checkpoint {checkpoint_id} is gone")
    parts = job.fork_parts if checkpoint_id == job.forked_from else None
    return ResumePoint(
        checkpoint_id=checkpoint_id,
        parts=ALL_PARTS if parts is None else parts,
        allow_code_change=attempt.allow_code_change,
        **row._asdict(),
    )

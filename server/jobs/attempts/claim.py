"""Claims of shares: a worker launches its node's share only after a successful claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from server.api.auth.tokens import TokenKind, hash_token, make_token
from server.cluster.nodes.workers import refuse_other_worker, registered_workers
from server.core.context import Context
from server.core.database.rows import Attempt, AttemptNode, Job
from server.core.database.tables import checkpoints, nodes
from server.core.errors import ConflictError, NotFoundError, RefusalError
from server.core.events.store import NewEvent
from server.core.leases import NODE_LEASES
from server.core.lifecycle import Move, attempt_to, lock_jobs_of, move_all, no_attempt, node_to
from server.core.subject import Actor
from server.jobs.attempts.launch import Launch, begun_before, read_launches
from trainyard.protocol.attempt import AttemptSpec, NodeAllocation, ResumePoint
from trainyard.protocol.rest.event_data import Claimed
from trainyard.protocol.resume_parts import ALL_PARTS
from trainyard.protocol.states import AttemptNodeState, AttemptState, DesiredState
from trainyard.protocol.worker_messages import PROTOCOL, Claim, ClaimReply, WorkerIdentity
from trainyard.spec.rules import fields_with_code


@dataclass(frozen=True)
class SentClaim:
    """A received claim to a node's share of an attempt."""

    attempt_id: str
    claim: Claim


@dataclass(frozen=True)
class _Taken:
    """State changes from a successful claim, and the event that records them."""

    moves: Sequence[Move]
    event: NewEvent


def claim(
    context: Context,
    attempt_id: str,
    *,
    node: str,
    worker: WorkerIdentity,
    secret: str | None = None,
) -> ClaimReply:
    """Claim a node's share of an attempt; only the first of several claims succeeds.

    The launch message of the worker is only a hint, because it may be old, duplicated or forged.
    Spec and parent checkpoint come from the database, read in the transaction of the claim. A
    repeat of the successful claim changes nothing and gets the same reply, because the first may
    have been lost.

    Args:
        context: the server's context.
        attempt_id: the attempt.
        node: the node that claims its share.
        worker: the worker that serves the node.
        secret: secret of the token for reports, which every repeat must send again; None generates
            one.

    Raises:
        NotFoundError: there is no such attempt, or the node has no share of the attempt.
        ConflictError: another claim came first, the share has ended, the attempt is ordered to end,
            or another worker serves the node.
    """
    sent = Claim(protocol=PROTOCOL, node=node, worker=worker, secret=secret)
    (reply,) = claim_all(context, [SentClaim(attempt_id, sent)])
    if isinstance(reply, RefusalError):
        raise reply
    return reply


def claim_all(context: Context, sent: Sequence[SentClaim]) -> list[ClaimReply | RefusalError]:
    """Carry out claims in one transaction, with a constant number of SQL statements.

    Args:
        context: the server's context.
        sent: claims of different attempts.

    Returns:
        For each claim the reply, or the error that `claim` would raise.
    """
    ids, names = [each.attempt_id for each in sent], [each.claim.node for each in sent]
    taken: list[_Taken] = []
    replies: list[ClaimReply | RefusalError] = []
    with context.database.write() as connection:
        lock_jobs_of(connection, ids)  # before the read, as a stop or another claim may come
        launches = read_launches(connection, ids)
        workers = registered_workers(connection, names)
        for each in sent:
            try:
                launch = launches.get(each.attempt_id)
                if launch is None:
                    raise no_attempt(each.attempt_id)
                reply, takes = _answer(
                    context, connection, launch=launch, claim=each.claim, workers=workers
                )
            except RefusalError as error:
                replies.append(error)
            else:
                replies.append(reply)
                taken += takes
        if taken:
            moves = [each for takes in taken for each in takes.moves]
            move_all(context, connection, moves=moves, events=[takes.event for takes in taken])
    return replies


def _answer(
    context: Context,
    connection: Connection,
    *,
    launch: Launch,
    claim: Claim,
    workers: Mapping[str, WorkerIdentity | None],
) -> tuple[ClaimReply, Sequence[_Taken]]:
    """Return the reply to a claim, and the state changes to store; a repeat changes nothing."""
    token = make_token(TokenKind.ATTEMPT, claim.secret)
    share = next((n for n in launch.nodes if n.node == claim.node), None)
    if share is None:
        raise NotFoundError(f"node {claim.node!r} has no share of attempt {launch.attempt.id!r}")
    if claim.node in workers:
        refuse_other_worker(claim.node, claim.worker, registered=workers[claim.node])
    token_hash = hash_token(token)
    repeats = share.state in NODE_LEASES.held and share.token_hash == token_hash
    if not repeats and launch.attempt.desired != DesiredState.RUN:
        state = launch.attempt.state
        raise ConflictError(f"attempt {launch.attempt.id} is {state} and must not run")
    reply = _reply(context, connection, launch, node_rank=share.node_rank, token=token)
    if repeats:
        return reply, []
    return reply, [
        _take(context, launch, share=share, claim=claim, reply=reply, token_hash=token_hash)
    ]


def _take(
    context: Context,
    launch: Launch,
    *,
    share: AttemptNode,
    claim: Claim,
    reply: ClaimReply,
    token_hash: str,
) -> _Taken:
    attempt, node = launch.attempt, share.node
    to_claimed = node_to(
        attempt.id,
        node,
        AttemptNodeState.CLAIMED,
        token_hash=token_hash,
        worker=claim.worker,
        **NODE_LEASES.claim(context.now()),
    )
    to_claimed.check(share.state)
    first = attempt.state == AttemptState.PLACED
    event = NewEvent(
        Claimed(),
        Actor(node),
        launch.subject.on(node),
        f"{node} took on {len(share.slots)} slot{'s' * (len(share.slots) != 1)}",
    )
    starting = []
    if first:
        tainted = bool(fields_with_code(reply.spec))
        starting = [attempt_to(attempt.id, AttemptState.STARTING, tainted=tainted)]
    return _Taken([to_claimed, *starting], event)


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
    )


def _addresses(connection: Connection, launch: Launch) -> tuple[str, ...]:
    names = [node.node for node in launch.nodes]
    columns = select(nodes.c.name, nodes.c.address).where(nodes.c.name.in_(names))
    found: dict[str, str] = {row.name: row.address for row in connection.execute(columns)}
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

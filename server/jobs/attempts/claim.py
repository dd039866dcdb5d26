"""Claims of shares: a worker launches its node's share only after a successful claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, select

from server.api.auth.tokens import TokenKind, hash_token, make_token
from server.cluster.nodes.workers import refuse_other_worker, registered_workers
from server.core.context import Context
from server.core.database.rows import Attempt, Job
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
from trainyard.protocol.worker_messages import Claim, ClaimReply, WorkerIdentity
from trainyard.spec.rules import fields_with_code


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
    `UnreadableError` or a `KeyFileError` if the spec or `env` cannot be read.

    Args:
        context: the server's context.
        sent: attempt ids, each with the claim of a node.
    """
    attempt_ids = [attempt_id for attempt_id, _ in sent]
    taken: list[tuple[list[Move], NewEvent]] = []
    replies: list[ClaimReply | RefusalError] = []
    with context.database.write() as connection:
        lock_jobs_of(connection, attempt_ids)  # before the read, as a stop may come meanwhile
        launches = read_launches(connection, attempt_ids)
        workers = registered_workers(connection, [claim.node for _, claim in sent])
        for attempt_id, claim in sent:
            try:
                if attempt_id not in launches:
                    raise no_attempt(attempt_id)
                reply, takes = _answer(
                    context, connection, launch=launches[attempt_id], claim=claim, workers=workers
                )
            except RefusalError as error:
                replies.append(error)
            else:
                replies.append(reply)
                taken += takes
        if taken:
            moves = [each for takes, _ in taken for each in takes]
            move_all(context, connection, moves=moves, events=[event for _, event in taken])
    return replies


def _answer(
    context: Context,
    connection: Connection,
    *,
    launch: Launch,
    claim: Claim,
    workers: Mapping[str, WorkerIdentity | None],
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
    if not repeats and launch.attempt.desired != DesiredState.RUN:
        state = launch.attempt.state
        raise ConflictError(f"attempt {launch.attempt.id} is {state} and must not run")
    reply = _reply(context, connection, launch, node_rank=share.node_rank, token=token)
    if repeats:
        return reply, []
    moves = [
        node_to(
            launch.attempt.id,
            claim.node,
            AttemptNodeState.CLAIMED,
            token_hash=token_hash,
            worker=claim.worker,
            **NODE_LEASES.claim(context.now()),
        )
    ]
    moves[0].check(share.state)
    if launch.attempt.state == AttemptState.PLACED:  # this is the first claim
        tainted = bool(fields_with_code(reply.spec))
        moves.append(attempt_to(launch.attempt.id, AttemptState.STARTING, tainted=tainted))
    count = f"{len(share.slots)} slot{'s' * (len(share.slots) != 1)}"
    words, subject = f"{claim.node} took on {count}", launch.subject.on(claim.node)
    return reply, [(moves, NewEvent(Claimed(), Actor(claim.node), subject, words))]


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

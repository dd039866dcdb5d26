"""The answer to a claim: all that a supervisor needs to launch its share."""

from __future__ import annotations

from sqlalchemy import Connection, select

from server.attempts.launch import Launch
from server.context import Context
from server.database.rows import Attempt, Job
from server.database.tables import checkpoints, nodes
from server.errors import ConflictError
from trainyard.protocol.attempt import AttemptSpec, NodeAllocation, ResumePoint
from trainyard.protocol.resume_parts import ALL_PARTS
from trainyard.protocol.worker_messages import ClaimReply


def claim_reply(
    context: Context, connection: Connection, launch: Launch, *, node_rank: int, token: str
) -> ClaimReply:
    """Return what a claim is answered with; the token stands nowhere else."""
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
            skip=attempt.skip,
        ),
        attempt_token=token,
        node_rank=node_rank,
        # Alone, torchrun takes a free port of its own; several nodes must agree on one.
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

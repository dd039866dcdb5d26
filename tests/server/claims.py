"""A single claim of a share."""

from __future__ import annotations

from server.core.context import Context
from server.core.errors import RefusalError
from server.jobs.attempts.claim import claim_all
from trainyard.protocol.worker_messages import PROTOCOL, Claim, ClaimReply, WorkerIdentity


def claim(
    context: Context,
    attempt_id: str,
    *,
    node: str,
    worker: WorkerIdentity,
    secret: str | None = None,
) -> ClaimReply:
    """Claim a node's share of an attempt, and raise the error of a refused claim."""
    sent = Claim(protocol=PROTOCOL, node=node, worker=worker, secret=secret)
    (reply,) = claim_all(context, [(attempt_id, sent)])
    if isinstance(reply, RefusalError):
        raise reply
    return reply

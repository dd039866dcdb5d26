"""Ends the shares of nodes after the engine reported that the nodes' pilots are gone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from server.cluster.supply.gone_nodes import HeldShare
from server.core.context import Context
from server.core.isolation import Isolation
from server.core.subject import SERVER
from server.jobs.attempts.finish import end_nodes
from server.jobs.attempts.launch import locked_share
from server.jobs.attempts.retry_policy import NodeEnd
from trainyard.protocol.states import AttemptNodeState, AttemptOutcome
from trainyard.run.failures import Failure, FailureReason

NEXT_LISTING = timedelta(seconds=60)
"""Pause of an attempt after an error; the next listing of the source tries again."""


def end_shares(context: Context, shares: Sequence[HeldShare]) -> None:
    """End shares as `node_lost`, because their processes are gone; ended shares are skipped.

    An error for one attempt is logged and does not affect other attempts. The next call of
    `shares_without_pilot` returns the share with the error again.
    """
    isolation = Isolation(context.clock.monotonic, pause=NEXT_LISTING)
    done = (AttemptNodeState.ENDED, AttemptNodeState.SPARE)  # a spare has no process to end
    for attempt_id, node in shares:
        message = f"the allocation of {node} ended, by the word of its engine"
        failure = Failure(reason=FailureReason.NODE_LOST, message=message, node=node)
        turn = isolation.turn(attempt_id, f"attempt {attempt_id}")
        with turn, context.database.write() as connection:
            share = locked_share(connection, attempt_id, node)
            if share is not None and share.state not in done:
                end = NodeEnd(node, AttemptOutcome.FAILED, failure)
                end_nodes(context, connection, attempt_id, [end], actor=SERVER)

"""Holds back a program's commit until the server has the earlier metrics of all its ranks.

Each node reports its own ranks. The node of global rank 0 reports the commit after the metrics of
its ranks, but the metrics of other nodes may arrive later. At the end of a checkpoint block, each
rank records the step, so its progress shows whether its metrics have arrived.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import select

from server.core.database.tables import attempt_nodes
from server.telemetry.ingest.report import IncomingReport
from server.telemetry.metrics.rank_steps import reached_by_all
from trainyard.protocol.states import AttemptNodeState
from trainyard.run.checkpoints.program_manifest import ProgramManifest

LONGEST_HOLD = timedelta(seconds=30)
"""Maximum age of a commit that is held back; an older commit is accepted because a node may be
silent or may use an older library."""


def hold_early_commits(incoming: IncomingReport) -> None:
    """Leave out a commit that precedes metrics of another node, and all events after the commit."""
    commits = [
        (index, event)
        for index, event in enumerate(incoming.content.events)
        if isinstance(event, ProgramManifest) and event.world_size > 1
    ]
    if not commits or not _others_report(incoming):
        return
    ranks, step = reached_by_all(incoming.connection, incoming.share.attempt_id)
    now = incoming.context.now()
    for index, commit in commits:
        has_all = ranks >= commit.world_size and step >= commit.step
        # If the trainer's clock is ahead of the server's, nothing is held back.
        if not has_all and timedelta() <= now - commit.created_at < LONGEST_HOLD:
            incoming.content.hold_events(index)
            return


def _others_report(incoming: IncomingReport) -> bool:
    share = incoming.share
    others = select(attempt_nodes.c.node).where(
        attempt_nodes.c.attempt_id == share.attempt_id,
        attempt_nodes.c.node != share.node,
        attempt_nodes.c.state == AttemptNodeState.RUNNING,
        attempt_nodes.c.lost_at.is_(None),
    )
    return incoming.connection.scalar(others.limit(1)) is not None

"""Chores that somebody takes back, and ended ones that nobody looks at any more."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection, delete, exists, select, update

from server.chores.carrying import lock_chore
from server.chores.queue import end_chore
from server.context import Context
from server.database.rows import Chore
from server.database.tables import checkpoints, chores
from server.errors import ConflictError
from server.subject import Actor
from trainyard.protocol.chores import ChoreKind
from trainyard.protocol.states import OPEN_CHORE_STATES, ChoreState

PRUNED_AT_ONCE = 1000


def cancel(context: Context, chore_id: str, *, actor: Actor) -> None:
    """Take a chore back; where it runs, the answer to its next report ends its command.

    A deletion can be taken back until a node has taken it on: then the checkpoint is usable again.

    Raises:
        NotFoundError: there is no such chore.
        ConflictError: it has ended, or files may be gone already.
    """
    with context.database.write() as connection:
        chore = lock_chore(connection, chore_id)
        if chore.state not in OPEN_CHORE_STATES:
            raise ConflictError(f"chore {chore_id} is {chore.state} already")
        if chore.kind == ChoreKind.DELETE:
            _take_back_deletion(connection, chore)
        end_chore(
            context,
            connection,
            chore,
            ChoreState.CANCELLED,
            message=f"taken back by {actor.name}",
            actor=actor,
        )


def prune_ended(context: Context) -> int:
    """Delete chores that ended long ago, at most a thousand, and return how many there were.

    Those of a checkpoint that is being deleted stay: one that failed tells that files are gone.
    """
    if not context.settings.chores_kept_days:
        return 0
    limit = context.now() - timedelta(days=context.settings.chores_kept_days)
    ended = sorted(frozenset(ChoreState) - OPEN_CHORE_STATES)
    being_deleted = exists().where(
        checkpoints.c.id == chores.c.checkpoint_id, checkpoints.c.deleting_since.is_not(None)
    )
    old = (
        select(chores.c.id)
        .where(chores.c.state.in_(ended), chores.c.ended_at < limit, ~being_deleted)
        .order_by(chores.c.id)
        .limit(PRUNED_AT_ONCE)
    )
    with context.database.write() as connection:
        return connection.execute(delete(chores).where(chores.c.id.in_(old))).rowcount


def _take_back_deletion(connection: Connection, chore: Chore) -> None:
    if chore.checkpoint_id is None:
        raise ConflictError(
            f"{chore.job_name} is no longer in the catalog: without this chore its checkpoints "
            "would lie on storage and nobody would know of them"
        )
    begun = exists().where(
        chores.c.checkpoint_id == chore.checkpoint_id,
        chores.c.kind == ChoreKind.DELETE,
        chores.c.fence > 0,  # of this chore, or of one that failed before it
    )
    if connection.scalar(select(begun)):
        raise ConflictError(
            f"a node has begun to delete {chore.checkpoint_id}: what is left of it is no "
            "checkpoint any more"
        )
    connection.execute(
        update(checkpoints)
        .where(checkpoints.c.id == chore.checkpoint_id)
        .values(deleting_since=None)
    )

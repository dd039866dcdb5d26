"""A cluster of many nodes with a long queue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import insert, select

from server.core.context import Context
from server.core.database.tables import jobs
from tests.web.actors import Stage

NODES, SLOTS, HELD_JOBS, QUEUED = 200, 8, 100, 5_000
QUEUED_AT_ONCE = 500
BATCH = {"global_batch_size": 512, "micro_batch_size": 1}


def gather(context: Context) -> Stage:
    """Join the nodes, place jobs on most of them, and queue the others; return the stage."""
    stage = Stage.open(context, at=datetime.now(UTC) - timedelta(minutes=20))
    for number in range(NODES):
        stage.join(f"gpu-{number:03}", slots=SLOTS, device_name="NVIDIA H200", gib=140)
    for number in range(HELD_JOBS):
        stage.submit(
            name=f"train-{number:03}", training=BATCH, resources={"world_size": 8 + number % 2 * 8}
        )
        if number % 10 == 9:
            stage.place()
    stage.place()
    _queue(stage)
    for _ in range(QUEUED // QUEUED_AT_ONCE + 1):
        stage.clock.advance(1)
        stage.place()
    return stage


def _queue(stage: Stage) -> None:
    """Queue copies of two jobs, without the checks of each submission."""
    wide = stage.submit(name="wide", training=BATCH, resources={"world_size": 64})
    wider = stage.submit(
        name="wider", training=BATCH, resources={"world_size": 512, "priority": "high"}
    )
    context = stage.context
    with context.database.write() as connection:
        kinds = connection.execute(
            select(jobs).where(jobs.c.id.in_([wide, wider])).order_by(jobs.c.name)
        ).all()
        rows = []
        for number in range(QUEUED - len(kinds)):
            kind = kinds[number % 50 == 0]._asdict()
            at = stage.clock.advance(0.1)
            rows.append(
                kind
                | {
                    "id": context.new_id(),
                    "name": f"{kind['name']}-{number:04}",
                    "created_at": at,
                    "queued_at": at,
                    "updated_at": at,
                }
            )
        connection.execute(insert(jobs), rows)

"""A database that was filled under the schema of revision 0017 is migrated, and then served."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from alembic import command

from server.api.auth.service import create_token
from server.core.context import Context
from server.core.database.engine import Database
from server.core.database.migrate import alembic_config, upgrade
from server.jobs.jobs.service import stop
from tests.actors import ADA
from tests.server.api.in_process import TestClient
from tests.server.harness import Harness
from trainyard.protocol.rest.access import TokenRequest

API = "/api/v1"
KINDS = ("queued", "waiting", "started", "progress", "ended")
# Ids of the rows that are written as revision 0017 stored them.
OPEN, RUNNING, DONE = (f"{n:026d}" for n in range(3))


@pytest.fixture
def filled(harness: Harness, context: Context, database: Database) -> str:
    """The id of a job with an attempt, checkpoints, and all that revision 0017 holds of chores."""
    harness.add_node("node-1", slots=4)
    job_id, (supervisor,) = harness.running(step=9)
    saved = [harness.commit_checkpoint(job_id, step) for step in (4, 8)]
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    with database.write() as connection:
        command.downgrade(alembic_config(connection), "0017")
        _fill(connection, context, job_id, saved)
    return job_id


def _fill(connection: sa.Connection, context: Context, job_id: str, saved: list[str]) -> None:
    """Write rows in the words of the former schema."""
    now = context.now() - timedelta(seconds=5)
    time = now.replace(tzinfo=None) if connection.dialect.name == "sqlite" else now
    metadata = sa.MetaData()
    chores = sa.Table("chores", metadata, autoload_with=connection)
    events = sa.Table("events", metadata, autoload_with=connection)
    states: dict[str, dict[str, Any]] = {
        OPEN: {"state": "queued", "kind": "verify", "waiting": "no node is online"},
        RUNNING: {
            "state": "running",
            "kind": "scrub",
            "node": "node-1",
            "fence": 2,
            "started_at": time,
            "last_report_at": time,
            "progress": '{"doing":"reads","done":1,"total":10}',
        },
        DONE: {
            "state": "succeeded",
            "kind": "delete",
            "node": "node-1",
            "fence": 1,
            "ended_at": time,
            "outcome": '{"outcome":"succeeded","message":"3 files","files":3}',
        },
    }
    for chore_id, given in states.items():
        task = {"kind": given["kind"], "job_id": job_id, "root": "data", "paths": ["j/a1/step-8"]}
        row = {
            "id": chore_id,
            "job_id": job_id,
            "job_name": "llama",
            "checkpoint_id": saved[-1],
            "actor": "ada",
            "reason": "",
            "task": orjson.dumps(task).decode(),
            "fence": 0,
            "created_at": time,
        }
        connection.execute(chores.insert().values({**row, **given}))
    quoted = 'the text {"chore_id":"x"} is no key'
    told: dict[str, dict[str, Any]] = {
        "queued": {"reason": quoted},
        "waiting": {"waiting": "no node is online"},
        "started": {"fence": 1},
        "progress": {"progress": {"doing": "reads", "done": 1, "total": 10}},
        "ended": {"state": "succeeded", "message": quoted, "ok": True},
    }
    for kind, more in told.items():
        data = {"chore_id": OPEN, "kind": "verify", "checkpoint_id": saved[-1], **more}
        row = {
            "at": time,
            "kind": f"chore_{kind}",
            "job_id": job_id,
            "actor": "ada",
            "message": f"verify {saved[-1]}",
            "data": orjson.dumps(data).decode(),
        }
        if "transient" in events.c:
            row["transient"] = False
        connection.execute(events.insert().values(row))


@pytest.fixture
def upgraded(filled: str, database: Database) -> str:
    """The same after the upgrade; the server starts on nothing older."""
    upgrade(database)
    return filled


def test_a_filled_database_of_the_former_schema_is_served(
    upgraded: str, context: Context, anonymous: TestClient
) -> None:
    _, token = create_token(context, TokenRequest(name="ada"))
    anonymous.headers["authorization"] = f"Bearer {token}"
    listed = anonymous.get(f"{API}/operations", params={"job": upgraded}).json()["items"]
    assert [(row["id"], row["kind"], row["state"]) for row in listed] == [
        (DONE, "delete", "succeeded"),
        (RUNNING, "scrub", "running"),
        (OPEN, "verify", "queued"),
    ]
    assert listed[0]["outcome"]["files"] == 3
    assert listed[1]["progress"]["done"] == 1
    assert listed[2]["waiting"] == "no node is online"
    assert anonymous.post(f"{API}/operations/{OPEN}/cancel").json()["state"] == "cancelled"
    events = anonymous.get(f"{API}/jobs/{upgraded}/events", params={"page_size": 200}).json()[
        "items"
    ]
    told = {event["kind"]: event["data"] for event in events if "operation" in event["kind"]}
    assert {f"operation_{kind}" for kind in KINDS} <= told.keys()
    assert all(data["operation_id"] == OPEN for data in told.values())
    assert told["operation_queued"]["reason"] == 'the text {"chore_id":"x"} is no key'
    assert not [event for event in events if "chore" in event["kind"]]
    assert anonymous.get(f"{API}/jobs/{upgraded}").json()["state"] == "stopped"
    assert len(anonymous.get(f"{API}/jobs/{upgraded}/checkpoints").json()["items"]) == 2


def test_the_former_schema_comes_back(filled: str, database: Database) -> None:
    """What a downgrade makes of a filled database, revision 0017 had made."""
    upgrade(database)
    with database.write() as connection:
        command.downgrade(alembic_config(connection), "0017")
        rows = connection.exec_driver_sql("SELECT id, state FROM chores ORDER BY id").all()
        told = connection.exec_driver_sql("SELECT kind, data FROM events ORDER BY id").all()
    states = {OPEN: "queued", RUNNING: "running", DONE: "succeeded"}
    assert {row[0]: row[1] for row in rows} == states
    kinds = [row for row in told if row[0].startswith("chore_")]
    assert [row[0] for row in kinds] == [f"chore_{kind}" for kind in KINDS]
    assert all(orjson.loads(row[1])["chore_id"] == OPEN for row in kinds)
    upgrade(database)

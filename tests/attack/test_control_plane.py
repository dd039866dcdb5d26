"""A plain or a leaked token against the server, where the isolation of nodes makes no difference.

So each attack runs once. The outcomes are those of docs/api.md, docs/lifecycle-operations.md (35),
docs/retention.md and docs/imports.md.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from embedded.child import MAX_LOG_BYTES
from tests.attack.conftest import person
from tests.e2e.control_plane import ONE_RANK, REPOSITORY, ControlPlane, disk_of, spec, wait_for
from tests.library.client.imports.test_hostile_files import (
    BOMB,
    COLUMNS,
    ENDLESS,
    changed_store,
    with_run,
)
from tests.other_users import needs_root
from trainyard.client.errors import TrainyardError
from trainyard.client.sdk import Client
from trainyard.protocol.rest.checkpoints import CheckpointView

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
STREAMS = 1001
"""More than all of a process."""
KEPT_DAYS = 10 / 86_400
LONGEST_IMPORT = 90.0
"""Seconds; an endless view alone has no end."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that runs no code, and forgets jobs soon that nothing needs."""
    made = ControlPlane(
        tmp_path_factory.mktemp("server"),
        TRAINYARD_ALLOW_CODE="false",
        TRAINYARD_JOBS_KEPT_DAYS=f"{KEPT_DAYS:.8f}",
    )
    try:
        made.connect().close()
        yield made
    finally:
        made.end()


@needs_root
def test_a_deletion_that_fails_is_shown_and_repeated(plane: ControlPlane, yard: Client) -> None:
    """Something below the checkpoint cannot be removed when retention deletes it."""
    job_id = yard.submit(
        spec(
            "keeps",
            training={"steps": 20, "micro_batch_size": 16},
            checkpoint={"interval_steps": 10, "keep_latest_k": 1},
            resources=ONE_RANK,
        )
    ).id
    run = plane.run(job_id)
    run.hold_at(12)

    def committed() -> CheckpointView | None:
        return next((each for each in yard.checkpoints(job_id) if each.step == 10), None)

    wait_for(committed, "first checkpoint")
    folder = plane.folders.checkpoints / job_id / "a1" / "step-10"
    with disk_of("256k", folder / "held"):
        run.go_on()

        def failing() -> CheckpointView | None:
            found = committed()
            return found if found is not None and found.not_deleted else None

        shown = wait_for(failing, "deletion that fails")
        assert shown.not_deleted is not None
        assert shown.not_deleted.count == 1
        assert shown.not_deleted.next_at is not None
        assert "busy" in shown.not_deleted.reason
    wait_for(lambda: committed() is None, "deletion that is repeated")
    assert not folder.exists()


def test_a_token_that_opens_every_stream_takes_none_from_others(
    plane: ControlPlane, yard: Client
) -> None:
    where = urlsplit(yard.url)
    assert where.hostname is not None
    assert where.port is not None
    address = where.hostname, where.port

    def opened(token: str) -> socket.socket:
        made = socket.create_connection(address, timeout=30)
        head = f"GET /api/v1/stream HTTP/1.1\r\nHost: {where.netloc}\r\n"
        made.sendall(f"{head}Authorization: Bearer {token}\r\n\r\n".encode())
        assert made.recv(4096).startswith(b"HTTP/1.1 200 ")
        return made

    greedy, other = (yard.create_token(name).secret or "" for name in ("greedy", "other"))
    streams = [opened(greedy) for _ in range(STREAMS)]
    try:
        with closing(opened(other)):
            # The oldest one has ended for another one of the same token.
            while streams[0].recv(65_536):
                pass
            with closing(opened(plane.folders.admin_token.read_text().strip())):
                assert next(yard.nodes()).online
    finally:
        for stream in streams:
            stream.close()


def test_a_log_that_somebody_fills_is_rotated(plane: ControlPlane, yard: Client) -> None:
    """Each request of a stranger is a line, of some hundred bytes whatever its path."""
    log = next(path for path in plane.folders.log("x").parent.glob("*.log") if _serves(path))
    begun = log.stat().st_size
    with httpx.Client(base_url=yard.url) as stranger:
        for _ in range(100):
            assert stranger.get(f"/api/v1/{'x' * 20_000}").status_code == 404
    assert log.stat().st_size - begun < 100_000
    with log.open("a") as file:
        for _ in range(MAX_LOG_BYTES // 1024):
            file.write("x" * 1023 + "\n")
    former = log.with_name(f"{log.name}.1")
    wait_for(lambda: former.exists() and log.stat().st_size < MAX_LOG_BYTES, "a new log")
    assert former.stat().st_size >= MAX_LOG_BYTES
    before = log.stat().st_size
    next(yard.nodes())
    wait_for(lambda: log.stat().st_size > before, "lines in the new log")


def _serves(log: Path) -> bool:
    return b"/api/v1/" in log.read_bytes()


def test_jobs_that_nothing_needs_are_forgotten(yard: Client) -> None:
    """A round takes some, once a minute; the job that has a checkpoint stays."""
    with person(yard, "flood") as flood:
        made = [flood.submit(spec(f"many-{i}", resources={"world_size": 2})).id for i in range(3)]
        for job_id in made:
            flood.cancel(job_id)
        wait_for(lambda: not {job.id for job in flood.jobs()} & set(made), "end of all its jobs")
        with pytest.raises(TrainyardError, match=made[0]):
            flood.job(made[0])
    assert {job.name for job in yard.jobs()} <= {"keeps"}


def test_hostile_files_keep_no_other_run_from_an_import(yard: Client, tmp_path: Path) -> None:
    """A bomb of aliases, a view without an end, and a huge value, among two sound runs."""
    with_run(tmp_path, "bad", f"{BOMB}run_id: bad\nrun_name: *j\n")
    view = f"CREATE VIEW runs AS {ENDLESS} SELECT {COLUMNS} FROM c"  # noqa: S608
    for name, statements in (
        ("endless", ["DROP TABLE runs", view]),
        ("huge", ["UPDATE runs SET name = zeroblob(90000000) WHERE name = 'calm-river'"]),
    ):
        made = changed_store(tmp_path, *statements)
        made.rename(tmp_path / f"{name}.db")
    with person(yard, "imports") as who:
        token = who.transport.connection.token or ""
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "trainyard", "import", "mlflow", str(tmp_path)],
            env={**os.environ, "TRAINYARD_URL": yard.url, "TRAINYARD_TOKEN": token},
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            timeout=300,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        assert time.monotonic() - began < LONGEST_IMPORT
        assert {"deep-lake", "rough-sea"} == {job.name for job in who.jobs() if job.imported_from}
        for reason in ("aliases are not read", "not a store of MLflow", "too big"):
            assert reason in done.stderr + done.stdout


def test_a_rotation_ends_what_a_leaked_admin_token_opened(plane: ControlPlane) -> None:
    """Last in this file: it ends the token of every other test."""
    with plane.connect() as leaked:
        with pytest.raises(TrainyardError, match="is more than a login code may live"):
            leaked.create_token("years", kind="login", expires_in_seconds=365 * 86_400)
        codes = [leaked.create_token(f"code-{i}", kind="login").secret for i in range(2)]
        api = leaked.create_token("left-behind").secret or ""
        with httpx.Client(base_url=leaked.url) as browser:
            session = "/api/v1/auth/session"
            assert browser.post(session, json={"code": codes[0]}).status_code == 201
            assert browser.get("/api/v1/jobs").status_code == 200
            rotation = subprocess.run(
                [sys.executable, "-m", "server", "admin-token", "--revoke-tokens", "--yes"],
                env={
                    **plane.environment,
                    "TRAINYARD_DATABASE_URL": f"sqlite:///{plane.folders.database}",
                    "TRAINYARD_STATE_DIR": str(plane.folders.state),
                },
                capture_output=True,
                text=True,
                cwd=REPOSITORY,
                check=True,
            )
            assert browser.get("/api/v1/jobs").status_code == 401
            assert browser.post(session, json={"code": codes[1]}).status_code == 401
        with pytest.raises(TrainyardError, match="unknown, expired or revoked"):
            next(leaked.nodes(), None)
    assert "left-behind" in rotation.stderr
    with Client(leaked.url, api) as left, pytest.raises(TrainyardError, match="revoked"):
        next(left.nodes(), None)
    with Client(leaked.url, rotation.stdout.strip()) as yard:
        assert next(yard.nodes()).online, "the node goes on with its own token"

"""Two API processes on one PostgreSQL: each acts on the rows of the other."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from sqlalchemy import delete, select

from server.api.accounts.throttle import MAX_FAILURES
from server.app.keys import ensure_key
from server.core.context import Context, SystemClock
from server.core.database.engine import Database
from server.core.database.tables import liveness
from server.core.liveness import GAP, server_uptime
from server.core.people.user_tables import failed_logins
from server.core.settings import Settings
from tests.server.api.processes import api
from tests.server.api.serving import PATIENCE, until
from tests.server.api.test_workers import registration

API = "/api/v1"
SESSION = f"{API}/auth/session"


@dataclass
class Servers:
    """Two servers with their own state folders and the same keys."""

    urls: tuple[str, str]
    processes: tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]
    admin_token: str
    database: Database
    opened: ExitStack
    """Closes the clients."""

    def client(self, index: int, token: str | None = None) -> httpx.Client:
        """Return a client of one server, with the admin token or another one."""
        headers = {"authorization": f"Bearer {token or self.admin_token}"}
        client = httpx.Client(base_url=self.urls[index], headers=headers, timeout=PATIENCE)
        return self.opened.enter_context(client)

    def browser(self, index: int) -> httpx.Client:
        """Return a client of one server without a token."""
        client = httpx.Client(base_url=self.urls[index], timeout=PATIENCE)
        return self.opened.enter_context(client)

    def new_token(self, kind: str) -> str:
        """Return a token created by the first server."""
        body = {"name": f"a-{kind}", "kind": kind}
        return str(self.client(0).post(f"{API}/tokens", json=body).json()["secret"])


@pytest.fixture(scope="module")
def servers(
    postgres_database: Callable[[], AbstractContextManager[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Servers]:
    one, two = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    with ExitStack() as running:
        url = running.enter_context(postgres_database())
        database = Database(url)
        running.callback(database.dispose)
        settings = Settings(database_url=url, state_dir=one)
        assert ensure_key(Context(settings, database, SystemClock())) is None
        shutil.copy(one / "secrets.key", two)
        # The first one creates the admin token.
        first = running.enter_context(api(one, DATABASE_URL=url))
        second = running.enter_context(api(two, DATABASE_URL=url))
        assert not (two / "admin.token").exists()
        token = (one / "admin.token").read_text().strip()
        yield Servers((first[0], second[0]), (first[1], second[1]), token, database, running)


def test_a_login_link_opens_one_session_which_holds_at_both(servers: Servers) -> None:
    code = servers.new_token("login")
    first, second = servers.browser(0), servers.browser(1)
    assert first.post(SESSION, json={"code": code}).status_code == 201
    assert second.post(SESSION, json={"code": code}).status_code == 401
    (cookie,) = first.cookies.items()
    second.cookies.set(*cookie)
    assert second.get(SESSION).json()["kind"] == "admin"
    origin = {"origin": servers.urls[1]}
    assert second.delete(SESSION, headers=origin).status_code == 204
    assert first.get(SESSION).status_code == 401, "logged out at the other one"


def test_a_join_token_is_used_up_at_both(servers: Servers) -> None:
    token = servers.new_token("join")
    register = f"{API}/workers/register"
    joined = servers.client(0, token).post(register, json=registration())
    assert joined.status_code == 200, joined.text
    again = servers.client(1, token).post(register, json=registration("gpu-02"))
    assert again.status_code == 401
    nodes = servers.client(1).get(f"{API}/nodes").json()["items"]
    assert [node["name"] for node in nodes] == ["gpu-01"]


def test_a_repeated_submission_makes_one_job(servers: Servers) -> None:
    replies: list[httpx.Response] = []

    def submit(index: int) -> None:
        headers = {"idempotency-key": "the-same-key"}
        replies.append(
            servers.client(index).post(f"{API}/jobs", json={"name": "once"}, headers=headers)
        )

    threads = [threading.Thread(target=submit, args=(number % 2,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {reply.status_code for reply in replies} <= {200, 201}
    assert len({reply.json()["id"] for reply in replies}) == 1


def test_values_of_env_that_one_stored_are_read_by_the_other(servers: Servers) -> None:
    body = {"name": "secret", "env": {"NCCL_DEBUG": "INFO"}}
    job_id = servers.client(0).post(f"{API}/jobs", json=body).json()["id"]
    shown = servers.client(1).get(f"{API}/jobs/{job_id}").json()
    assert shown["spec"]["env"] == {"NCCL_DEBUG": "INFO"}, "decrypted, not masked"


def test_a_stream_of_one_delivers_what_the_other_stored(servers: Servers) -> None:
    with servers.client(1).stream("GET", f"{API}/stream") as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("retry:")
        job_id = servers.client(0).post(f"{API}/jobs", json={"name": "streamed"}).json()["id"]
        assert next(event for event in events_of(lines) if event.get("job_id") == job_id)


def events_of(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_failed_logins_are_counted_together(servers: Servers) -> None:
    wrong = {"token": "ty_api_wrong"}
    with servers.database.write() as connection:
        connection.execute(delete(failed_logins))  # of an earlier test, in another time window
    tries = [servers.browser(number % 2).post(SESSION, json=wrong) for number in range(20)]
    statuses = [reply.status_code for reply in tries]
    assert statuses == [401] * MAX_FAILURES + [429] * (20 - MAX_FAILURES)


def test_leases_are_judged_while_one_of_two_is_left(servers: Servers) -> None:
    """The last test: it ends the first server, and stops the second one."""

    def uptime() -> Any:
        with servers.database.read() as connection:
            return connection.execute(select(liveness)).one()

    def heard() -> Any:
        with servers.database.read() as connection:
            return server_uptime(connection, datetime.now(UTC))

    since = uptime().up_since
    servers.processes[0].kill()
    servers.processes[0].wait()
    killed_at = datetime.now(UTC)
    until(lambda: uptime().beat_at > killed_at + GAP)
    assert uptime().up_since == since, "the beats have no gap"
    assert heard().up_since == since
    os.kill(servers.processes[1].pid, signal.SIGSTOP)
    until(lambda: heard() is None)
    os.kill(servers.processes[1].pid, signal.SIGCONT)
    until(lambda: heard() is not None)
    assert uptime().up_since > killed_at + GAP, "time without a server counts against no lease"

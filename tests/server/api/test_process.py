"""`python -m server` as processes: conditions of their start, and their end."""

from __future__ import annotations

import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx

from tests.server.api.processes import ROOT, STARTS_SECONDS, api, environment
from tests.server.api.serving import PATIENCE, until


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the server to its end."""
    return subprocess.run(
        [sys.executable, "-m", "server", command],
        cwd=ROOT,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=STARTS_SECONDS,
        check=False,
    )


def _has_beaten(folder: Path) -> bool:
    with closing(sqlite3.connect(folder / "trainyard.db")) as connection:
        return bool(connection.execute("SELECT count(*) FROM liveness").fetchone()[0])


def test_the_api_starts_on_the_newest_schema_only(tmp_path: Path) -> None:
    refused = run(tmp_path, "api")
    assert refused.returncode == 1
    assert "python -m server migrate" in refused.stderr
    assert not (tmp_path / "admin.token").exists()
    assert run(tmp_path, "migrate").returncode == 0
    with api(tmp_path) as (url, process):
        token = (tmp_path / "admin.token").read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{url}/api/v1/jobs", headers=headers).status_code == 200
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nx: " + b"a" * 60_000)
            assert stranger.recv(100).startswith(b"HTTP/1.1 431 ")
        until(lambda: _has_beaten(tmp_path))
        fresh = run(tmp_path, "admin-token").stdout.strip()
        assert httpx.get(f"{url}/api/v1/jobs", headers=headers).status_code == 401
        headers = {"authorization": f"Bearer {fresh}"}
        # An open stream must not keep the server from ending.
        with httpx.stream(
            "GET", f"{url}/api/v1/stream", headers=headers, timeout=PATIENCE
        ) as reply:
            lines = reply.iter_lines()
            assert next(lines).startswith("retry:")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
    log = (tmp_path / "api.log").read_text()
    assert "Traceback" not in log
    assert token not in log
    assert fresh not in log


def test_an_unknown_command_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    refused = run(tmp_path, "serve")
    assert refused.returncode == 2
    assert "scheduler" in refused.stderr

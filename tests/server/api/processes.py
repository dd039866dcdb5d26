"""The API as a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.server.api.serving import until

ROOT = Path(__file__).resolve().parents[3]
STARTS_SECONDS = 120.0
"""A process imports the whole server before it answers, on a machine shared with other tests."""


def environment(folder: Path, **settings: str) -> dict[str, str]:
    """Return the environment of a server whose files lie in a folder."""
    own = {"DATABASE_URL": f"sqlite:///{folder}/trainyard.db", "STATE_DIR": str(folder)} | settings
    return os.environ | {f"TRAINYARD_{name}": value for name, value in own.items()}


@contextmanager
def api(folder: Path, **settings: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start the API process, and yield its URL once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    log = folder / "api.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "server", "api"],
            cwd=ROOT,
            env=environment(folder, PORT=str(port), **settings),
            stdout=output,
            stderr=output,
        )
    try:
        until(lambda: _answers(url) or process.poll() is not None, seconds=STARTS_SECONDS)
        assert process.poll() is None, log.read_text()
        yield url, process
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").is_success
    except httpx.TransportError:
        return False

"""One API process over a database of played scenes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from playwright.sync_api import APIRequestContext

from embedded.child import any_free_port
from server.api.auth.service import create_token
from server.core.context import Context
from tests.e2e.control_plane import LOOPBACK, wait_for
from tests.web.actors import open_context
from tests.web.browser import REPOSITORY
from tests.web.scenes import Scenes, play
from trainyard.protocol.rest.access import TokenRequest


@dataclass(frozen=True)
class Served:
    """A server that a browser can open."""

    url: str
    token: str
    admin_token: str

    def log_in(self, request: APIRequestContext, *, admin: bool = False) -> None:
        """Give a browser a session."""
        token = self.admin_token if admin else self.token
        answer = request.post(f"{self.url}/api/v1/auth/session", data={"token": token})
        assert answer.ok, answer.text()

    def api(self) -> httpx.Client:
        """Return a client for concurrent actions of another person."""
        headers = {"authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=30)


@dataclass(frozen=True)
class Theatre(Served):
    """Serves the scenes."""

    scenes: Scenes


@contextmanager
def opened(folder: Path) -> Iterator[Theatre]:
    """Play the scenes and serve them until the block ends."""
    context = open_context(folder)
    scenes = play(context)
    with served(context, folder) as server:
        yield Theatre(server.url, server.token, server.admin_token, scenes)


@contextmanager
def served(
    context: Context,
    folder: Path,
    *,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """Serve the database of a context until the block ends, with further `TRAINYARD_*` settings."""
    _, token = create_token(context, TokenRequest(name="ada"))
    port = port or any_free_port(LOOPBACK)
    environment = {
        **os.environ,
        "TRAINYARD_DATABASE_URL": context.settings.database_url,
        "TRAINYARD_STATE_DIR": str(folder),
        "TRAINYARD_PORT": str(port),
        "TRAINYARD_ALLOW_CODE": str(context.settings.allow_code),
        **{f"TRAINYARD_{name}": value for name, value in (settings or {}).items()},
    }
    url = f"http://{LOOPBACK}:{port}"
    with (folder / "api.log").open("wb") as log:
        api = subprocess.Popen(
            [sys.executable, "-m", "server", "api"],
            env=environment,
            cwd=REPOSITORY,
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(lambda: _is_ready(url), "the API")
        admin_token = (folder / "admin.token").read_text(encoding="utf-8").strip()
        yield Served(url, token, admin_token)
    finally:
        api.terminate()
        api.wait(60)
        context.database.dispose()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).is_success
    except httpx.TransportError:
        return False

"""A server that several people share, for tests of pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import APIRequestContext

from tests.web.actors import Stage, open_context
from tests.web.theatre import Served, served

PASSWORD = "correct horse battery"
LONG_NAME = "margarethe-von-hohenstein.research-cluster-operations-europe-w1"
BROWSERS = (
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like "
    "Gecko) Version/18.5 Mobile/15E148 Safari/604.1",
    "Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0",
)


@dataclass(frozen=True)
class Group(Served):
    """Serves the jobs of `ada`, `bob` and the built-in user."""

    jobs: dict[str, str] = field(default_factory=dict)
    """Ids of the jobs by name."""

    def admin(self) -> httpx.Client:
        """Return a client with the admin token."""
        return _client(self.url, self.admin_token)

    def invite(self, name: str, **fields: Any) -> dict[str, Any]:
        """Create a user and return the reply, with code and link."""
        with self.admin() as admin:
            return dict(
                admin.post("/users", json={"name": name, **fields}).raise_for_status().json()
            )

    def join(self, name: str, **fields: Any) -> None:
        """Create a user who has set a password."""
        body = {"code": self.invite(name, **fields)["code"], "password": PASSWORD}
        with self._browser() as browser:
            browser.post("/auth/invitation", json=body).raise_for_status()

    def log_in_as(self, request: APIRequestContext, name: str) -> None:
        """Give a browser a session of a user."""
        body = {"name": name, "password": PASSWORD}
        answer = request.post(f"{self.url}/api/v1/auth/session", data=body)
        assert answer.ok, answer.text()

    @contextmanager
    def member(self, name: str, browser: str = "") -> Iterator[httpx.Client]:
        """Open a session of a user in another browser; it stays after the block."""
        with self._browser(browser) as client:
            body = {"name": name, "password": PASSWORD}
            client.post("/auth/session", json=body).raise_for_status()
            yield client

    def _browser(self, browser: str = "") -> httpx.Client:
        headers = {"origin": self.url} | ({"user-agent": browser} if browser else {})
        return httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=30)


@contextmanager
def gathered(folder: Path) -> Iterator[Group]:
    """Serve users in every state, and their jobs, until the block ends."""
    context = open_context(folder)
    stage = Stage.open(context, at=datetime.now(UTC) - timedelta(minutes=10))
    stage.join("gpu-01", slots=4, device_name="NVIDIA H200", gib=140)
    jobs = {"of-admin": stage.submit(name="of-admin", resources={"world_size": 2})}
    with served(context, folder) as server:
        group = Group(server.url, server.token, server.admin_token, jobs)
        group.join("ada", email="ada@example.org")
        group.join("bob", role="operator", email="bob@example.org")
        group.join("root", role="admin")
        group.invite(LONG_NAME, email=f"{LONG_NAME}@example.org")
        group.join("dan")
        with group.admin() as admin:
            dan = admin.get("/users", params={"name": "dan"}).json()["items"][0]["id"]
            admin.patch(f"/users/{dan}", json={"state": "disabled"}).raise_for_status()
        for name in ("ada", "bob"):
            with group.member(name) as member:
                member.post("/tokens", json={"name": f"{name}-laptop"}).raise_for_status()
                for number in (1, 2):
                    title = f"of-{name}-{number}"
                    made = member.post("/jobs", json={"name": title, "tags": [name]})
                    jobs[title] = made.raise_for_status().json()["id"]
        yield group


def _client(url: str, token: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.Client(base_url=f"{url}/api/v1", headers=headers, timeout=30)

"""A real issuer of the tests, and browsers that log in through it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from fastapi import FastAPI

from tests.server.api.in_process import TestClient
from tests.server.clock import FakeClock
from tests.server.members import OURS

FOLDER = Path(__file__).resolve().parents[3] / "issuer"
BASE = "http://127.0.0.1:8470"
ORIGIN = {"origin": BASE}
API = "/api/v1"
OIDC = f"{API}/auth/oidc"
LOGIN, CALLBACK = f"{OIDC}/login", f"{OIDC}/callback"
SECRET = "a secret: with/special+characters"
SCOPES = "openid profile email groups offline_access"


class ShiftedClock(FakeClock):
    """The clock of the machine, which a test shifts: issuers have the time of the machine."""

    def __init__(self) -> None:
        super().__init__()
        self._shift = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self._shift

    def set(self, seconds: float) -> datetime:
        self._shift += timedelta(seconds=seconds)
        return self.now()


@dataclass(frozen=True)
class TestIssuer:
    """An issuer of npm's `oidc-provider`, controlled by HTTP."""

    __test__ = False
    url: str

    def put(self, person: str, **claims: Any) -> None:
        """Add a person, or change the claims of one."""
        httpx.put(f"{self.url}/control/persons/{person}", json=claims).raise_for_status()

    def remove(self, person: str) -> None:
        """Remove a person, whose refresh tokens then end."""
        httpx.delete(f"{self.url}/control/persons/{person}").raise_for_status()

    def logout_tokens(self) -> list[str]:
        """Return the logout tokens that the issuer has sent."""
        return list(httpx.get(f"{self.url}/control/logout-tokens").json())

    @contextmanager
    def down(self) -> Iterator[None]:
        """Let the issuer close all connections while the block runs."""
        httpx.put(f"{self.url}/control/down", json=True)
        try:
            yield
        finally:
            httpx.put(f"{self.url}/control/down", json=False)


@contextmanager
def running_issuer(base: str = BASE) -> Iterator[TestIssuer]:
    """Run the issuer as a process, with the server at `base` as its client."""
    process = subprocess.Popen(
        ["node", "issuer.mjs", base],
        cwd=FOLDER,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, "the issuer did not start"
        yield TestIssuer(url)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


class Person:
    """A person with a browser that keeps the cookies of this server and of the issuer."""

    def __init__(self, app: FastAPI, name: str, host: str = "testclient") -> None:
        self.name = name
        self.browser = TestClient(app, base_url=BASE, client=(host, 5), follow_redirects=False)
        self.at_issuer = httpx.Client(follow_redirects=False)

    def begin(self, next_path: str = "/queue") -> str:
        """Begin a login; return the page of the issuer."""
        begun = self.browser.get(LOGIN, params={"next": next_path})
        assert begun.status_code == 302, begun.text
        return begun.headers["location"]

    def confirm(self, page: str, *, person: str | None = None) -> str:
        """Log in at the issuer; return the address to which it sends the browser."""
        name = self.name if person is None else person
        for _ in range(12):
            response = self.at_issuer.get(page)
            assert response.status_code in (302, 303), f"{page}: {response.text}"
            page = str(response.url.join(response.headers["location"]))
            if page.startswith(BASE):
                return page
            if "/interaction/" in page:
                page = f"{page}?person={name}"
        raise AssertionError(f"the issuer did not come to an end: {page}")

    def end(self, address: str) -> str:
        """Open the address to which the issuer sent the browser; return the next one."""
        ended = self.browser.get(address.removeprefix(BASE))
        assert ended.status_code == 302, ended.text
        return ended.headers["location"]

    def log_in(self, next_path: str = "/queue") -> str:
        """Log in; return the path to which this server sends the browser."""
        return self.end(self.confirm(self.begin(next_path)))

    def session(self) -> dict[str, Any]:
        """Return the session of the browser."""
        found = self.browser.get(f"{API}/auth/session")
        assert found.status_code == 200, found.text
        return dict(found.json())

    def is_logged_in(self) -> bool:
        return self.browser.get(f"{API}/auth/session").status_code == 200

    def projects(self) -> dict[str, str]:
        """Return the roles of the person by project."""
        response = self.browser.get(f"{API}/projects")
        if response.status_code == httpx.codes.FORBIDDEN:  # no role in any project
            return {}
        listed = response.json()["items"]
        return {each["name"]: each["role"] for each in listed}


def give(client: TestClient, group: str, role: str | None, *, project: str = OURS) -> int:
    """Give a group a role in a project; return the status."""
    path = f"{API}/projects/{project}/groups"
    return client.put(path, json={"group": group, "role": role}).status_code


def query_of(address: str) -> Mapping[str, str]:
    """Return the query of an address."""
    return {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}


def with_query(address: str, **changes: str | None) -> str:
    """Return an address with changed parameters; None removes one."""
    query = {**query_of(address), **changes}
    left = {name: value for name, value in query.items() if value is not None}
    return str(httpx.URL(re.sub(r"\?.*", "", address), params=left))

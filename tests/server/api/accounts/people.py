"""Users of the tests: invited by the admin, with a password, logged in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from tests.server.api.in_process import TestClient

API = "/api/v1"
URL = "http://127.0.0.1:8470"
ORIGIN = {"origin": URL}
PASSWORD = "correct horse battery"
WRONG = "not the right password"
SESSION = f"{API}/auth/session"


@dataclass
class Member:
    """A user with a browser that is logged in by password."""

    id: str
    name: str
    browser: TestClient

    def token(self, name: str = "laptop", **fields: Any) -> dict[str, str]:
        """Create an API token of the user and return its header."""
        made = self.browser.post(f"{API}/tokens", json={"name": name, **fields}, headers=ORIGIN)
        assert made.status_code == 201, made.text
        return {"authorization": f"Bearer {made.json()['secret']}"}


def invited(admin: TestClient, name: str, **fields: Any) -> dict[str, Any]:
    """Create a user and return the reply, with the code."""
    made = admin.post(f"{API}/users", json={"name": name, **fields})
    assert made.status_code == 201, made.text
    return dict(made.json())


def joined(app: FastAPI, admin: TestClient, name: str, **fields: Any) -> Member:
    """Create a user who has accepted the invitation."""
    made = invited(admin, name, **fields)
    browser = TestClient(app, base_url=URL)
    body = {"code": made["code"], "password": PASSWORD}
    accepted = browser.post(f"{API}/auth/invitation", json=body, headers=ORIGIN)
    assert accepted.status_code == 201, accepted.text
    return Member(made["user"]["id"], name, browser)


def at(app: FastAPI, host: str) -> TestClient:
    """Return a browser at another address."""
    return TestClient(app, base_url=URL, client=(host, 5))


def log_in(client: TestClient, password: str, name: str = "ada") -> int:
    """Log in by password; return the status."""
    return client.post(SESSION, json={"name": name, "password": password}).status_code

"""Logins of devices: a person approves a code in a browser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select

from server.api.accounts.device_logins import MAX_OF_ADDRESS
from server.core.context import Context
from server.core.people.identity_tables import device_logins
from tests.server.api.accounts.people import API, ORIGIN, Member, at, joined
from tests.server.api.in_process import TestClient
from tests.server.clock import FakeClock

DEVICE = f"{API}/auth/device"


@pytest.fixture
def ada(app: FastAPI, admin: TestClient) -> Member:
    return joined(app, admin, "ada")


@pytest.fixture
def shell(app: FastAPI) -> TestClient:
    """The command line on a login node."""
    return at(app, "198.51.100.1")


def begin(shell: TestClient, **fields: Any) -> dict[str, Any]:
    made = shell.post(DEVICE, json={"host": "login-1", **fields})
    assert made.status_code == 201, made.text
    return dict(made.json())


def poll(shell: TestClient, begun: Mapping[str, Any]) -> tuple[int, str]:
    """Poll; return the status, and the error code or the secret."""
    reply = shell.post(f"{DEVICE}/token", json={"device_code": begun["device_code"]})
    body = reply.json()
    return reply.status_code, body.get("secret") or body["type"].rpartition("/")[2]


def decide(ada: Member, begun: Mapping[str, Any], *, approved: bool = True) -> int:
    body = {"user_code": begun["user_code"], "approved": approved}
    return ada.browser.post(f"{DEVICE}/decision", json=body, headers=ORIGIN).status_code


def test_an_approved_device_gets_a_token_once(
    app: FastAPI, ada: Member, shell: TestClient, clock: FakeClock
) -> None:
    begun = begin(shell)
    assert re.fullmatch(r"[B-Z]{4}-[B-Z]{4}", begun["user_code"])
    assert begun["verification_uri_complete"].endswith(f"/device#{begun['user_code']}")
    assert (begun["expires_in"], begun["interval"]) == (600, 5)
    assert poll(shell, begun) == (400, "authorization_pending")
    typed = {"user_code": begun["user_code"].lower().replace("-", " ")}
    seen = ada.browser.post(f"{DEVICE}/check", json=typed, headers=ORIGIN).json()
    assert (seen["host"], seen["address"], seen["scopes"]) == ("login-1", "198.51.100.1", None)
    assert seen["lifetime_seconds"] == 30 * 86_400
    assert seen["same_address"] is False
    assert decide(ada, begun) == 204
    clock.advance(5)
    status, secret = poll(shell, begun)
    assert status == 201
    clock.advance(5)
    assert poll(shell, begun) == (400, "expired_token")
    header = {"authorization": f"Bearer {secret}"}
    who = TestClient(app, headers=header).get(f"{API}/auth/session").json()
    assert who["user"]["name"] == "ada"
    assert who["name"].startswith("login-1-")
    assert "users:admin" not in who["permissions"]


def test_a_device_at_the_address_of_the_person(app: FastAPI, ada: Member) -> None:
    begun = begin(at(app, "2001:db8::1"))
    body = {"user_code": begun["user_code"]}
    for address, is_same in (("2001:db8:0:1::1", True), ("2001:db8:1::1", False)):
        browser = at(app, address)
        browser.cookies = ada.browser.cookies
        seen = browser.post(f"{DEVICE}/check", json=body, headers=ORIGIN).json()
        assert seen["same_address"] is is_same


def test_a_denied_device_gets_no_token(ada: Member, shell: TestClient, clock: FakeClock) -> None:
    begun = begin(shell)
    assert decide(ada, begun, approved=False) == 204
    assert decide(ada, begun) == 404, "a decision is final"
    assert poll(shell, begun) == (400, "access_denied")
    clock.advance(5)
    assert poll(shell, begun) == (400, "expired_token")


def test_a_device_that_polls_too_often_slows_down(
    ada: Member, shell: TestClient, clock: FakeClock
) -> None:
    begun = begin(shell)
    assert poll(shell, begun) == (400, "authorization_pending")
    clock.advance(1)
    assert poll(shell, begun) == (400, "slow_down")
    clock.advance(6)
    assert poll(shell, begun) == (400, "slow_down")
    clock.advance(15)
    assert poll(shell, begun) == (400, "authorization_pending")
    assert decide(ada, begun) == 204
    assert poll(shell, begun)[0] == 201, "an approved device does not wait"


def test_a_login_ends_after_ten_minutes(ada: Member, shell: TestClient, clock: FakeClock) -> None:
    begun = begin(shell)
    clock.advance(601)
    assert decide(ada, begun) == 404
    assert poll(shell, begun) == (400, "expired_token")


def test_an_approval_ends_with_its_session(
    ada: Member, shell: TestClient, admin: TestClient
) -> None:
    begun, other = begin(shell), begin(shell)
    assert decide(ada, begun) == decide(ada, other) == 204
    assert ada.browser.delete(f"{API}/auth/session", headers=ORIGIN).status_code == 204
    assert poll(shell, begun) == (400, "access_denied")
    disabled = admin.patch(f"{API}/users/{ada.id}", json={"state": "disabled"})
    assert disabled.status_code == 200
    assert poll(shell, other) == (400, "access_denied")


def test_a_token_has_the_requested_scopes(
    app: FastAPI, ada: Member, shell: TestClient, clock: FakeClock
) -> None:
    begun = begin(shell, scopes=["jobs:read"], expires_in_seconds=3600)
    assert decide(ada, begun) == 204
    _, secret = poll(shell, begun)
    client = TestClient(app, headers={"authorization": f"Bearer {secret}"})
    assert client.get(f"{API}/auth/session").json()["permissions"] == ["jobs:read"]
    clock.advance(3601)
    assert client.get(f"{API}/auth/session").status_code == 401


def test_a_person_approves_only_own_permissions(ada: Member, shell: TestClient) -> None:
    begun = begin(shell, scopes=["users:admin"])
    assert decide(ada, begun) == 403
    assert poll(shell, begun) == (400, "authorization_pending")


def test_a_token_cannot_approve(app: FastAPI, ada: Member, shell: TestClient) -> None:
    """A stolen token could otherwise make others that outlive it."""
    begun = begin(shell)
    client = TestClient(app, headers=ada.token())
    body = {"user_code": begun["user_code"], "approved": True}
    assert client.post(f"{DEVICE}/decision", json=body).status_code == 409


def test_a_page_of_another_site_cannot_approve(ada: Member, shell: TestClient) -> None:
    begun = begin(shell)
    body = {"user_code": begun["user_code"], "approved": True}
    for headers in ({}, {"origin": "https://evil.example.com"}):
        refused = ada.browser.post(f"{DEVICE}/decision", json=body, headers=headers)
        assert refused.status_code == 403
    assert poll(shell, begun) == (400, "authorization_pending")


def test_guesses_of_codes_are_counted(
    app: FastAPI, ada: Member, shell: TestClient, clock: FakeClock
) -> None:
    begun = begin(shell)
    found = []
    for _ in range(11):
        clock.advance(30)  # the limit of an address has a window of a minute
        reply = ada.browser.post(f"{DEVICE}/check", json={"user_code": "BBBB-BBBB"}, headers=ORIGIN)
        found.append(reply.status_code)
    assert found == [404] * 10 + [429]
    assert decide(ada, begun) == 429, "also the right code"
    del app


def test_waiting_devices_of_an_address_are_bounded(app: FastAPI, shell: TestClient) -> None:
    for _ in range(MAX_OF_ADDRESS):
        begin(shell)
    refused = shell.post(DEVICE, json={"host": "x"})
    assert refused.status_code == 429
    assert "retry-after" in refused.headers
    begin(at(app, "198.51.100.2"))


def test_waiting_devices_of_a_site_are_bounded(app: FastAPI) -> None:
    for number in range(MAX_OF_ADDRESS):
        begin(at(app, f"2001:db8:0:{number:x}::1"))
    assert at(app, "2001:db8:0:ffff::1").post(DEVICE, json={"host": "x"}).status_code == 429
    begin(at(app, "2001:db8:1::1"))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"host": ""},
        {"host": "<b>x</b>"},
        {"host": "x" * 101},
        {"host": "x", "scopes": []},
        {"host": "x", "scopes": ["all"]},
        {"host": "x", "expires_in_seconds": 59},
        {"host": "x", "expires_in_seconds": 31 * 86_400},
        {"host": "x", "user_id": "1"},
    ],
)
def test_an_illegal_device_is_refused(
    shell: TestClient, context: Context, body: Mapping[str, object]
) -> None:
    assert shell.post(DEVICE, json=body).status_code == 422
    with context.database.read() as connection:
        assert connection.execute(select(device_logins)).all() == []


def test_no_code_lies_in_the_database(shell: TestClient, context: Context) -> None:
    begun = begin(shell)
    with context.database.read() as connection:
        stored = repr(connection.execute(select(device_logins)).all())
    assert begun["device_code"] not in stored
    assert begun["user_code"].replace("-", "") not in stored

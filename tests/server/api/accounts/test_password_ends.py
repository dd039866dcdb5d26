"""What ends with a password, and what a guess costs."""

from __future__ import annotations

from typing import NoReturn

import pytest
from argon2 import PasswordHasher
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import update

from server.api.accounts import guesses, passwords
from server.api.accounts.logins import find_account, open_password_session
from server.api.auth.browser_sessions import Browser
from server.core.context import Context
from server.core.database.engine import Database
from server.core.people.user_tables import users
from tests.server.api.accounts.people import (
    API,
    ORIGIN,
    PASSWORD,
    SESSION,
    WRONG,
    Member,
    at,
    joined,
    log_in,
)
from tests.server.api.in_process import TestClient


@pytest.fixture
def ada(app: FastAPI, admin: TestClient) -> Member:
    return joined(app, admin, "ada")


def test_a_change_of_the_password_ends_the_copied_cookie_and_the_own_invitations(
    app: FastAPI, admin: TestClient, ada: Member
) -> None:
    root = joined(app, admin, "root", role="admin")
    thief = at(app, "192.0.2.66")
    thief.cookies.update(root.browser.cookies)
    path = f"{API}/users/{ada.id}/invitation"
    code = thief.post(path, headers=ORIGIN).json()["code"]
    body = {"current": PASSWORD, "new": "a much better one"}
    changed = root.browser.put(f"{API}/auth/password", json=body, headers=ORIGIN)
    assert changed.status_code == 204
    assert root.browser.get(f"{API}/users").status_code == 200
    assert thief.get(f"{API}/users").status_code == 401
    assert thief.post(f"{API}/auth/invitation/check", json={"code": code}).status_code == 401


def test_a_reset_of_the_password_ends_tokens(app: FastAPI, admin: TestClient, ada: Member) -> None:
    header = ada.token()
    made = admin.post(f"{API}/users/{ada.id}/invitation").json()
    client = at(app, "192.0.2.67")
    body = {"code": made["code"], "password": "a much better one"}
    assert client.post(f"{API}/auth/invitation", json=body, headers=ORIGIN).status_code == 201
    assert client.get(f"{API}/jobs").status_code == 200
    assert at(app, "192.0.2.68").get(f"{API}/jobs", headers=header).status_code == 401


def test_a_login_replaces_the_session_of_its_browser(app: FastAPI, ada: Member) -> None:
    former = at(app, "192.0.2.69")
    former.cookies.update(ada.browser.cookies)
    assert log_in(ada.browser, PASSWORD) == 201
    assert former.get(f"{API}/jobs").status_code == 401
    assert ada.browser.get(f"{API}/jobs").status_code == 200


def test_a_password_that_changes_during_its_check_opens_nothing(
    app: FastAPI, ada: Member, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored hash has old parameters, and a reset comes before the new hash is stored."""
    old = PasswordHasher(time_cost=1, memory_cost=8192, parallelism=1)
    its = update(users).where(users.c.id == ada.id)
    with context.database.write() as connection:
        connection.execute(its.values(password=old.hash(PASSWORD)))
    compute = passwords.new_hash

    async def slow(password: SecretStr, *, holders: passwords.Holders) -> str:
        with context.database.write() as connection:
            connection.execute(its.values(password=old.hash("a much better one")))
        return await compute(password, holders=holders)

    monkeypatch.setattr(guesses, "new_hash", slow)
    assert log_in(at(app, "192.0.2.70"), PASSWORD) == 401


def test_a_password_is_the_same_in_each_form_of_unicode(app: FastAPI, ada: Member) -> None:
    body = {"current": PASSWORD, "new": "Stra\u00dfe nach M\u00fcnchen"}
    assert ada.browser.put(f"{API}/auth/password", json=body, headers=ORIGIN).status_code == 204
    assert log_in(at(app, "192.0.2.71"), "Stra\u00dfe nach Mu\u0308nchen") == 201


def test_a_session_of_a_token_does_not_lift_the_limit_of_an_account(
    app: FastAPI, ada: Member
) -> None:
    header = ada.token("ci", scopes=["jobs:read"])
    secret = header["authorization"].removeprefix("Bearer ")
    thief = at(app, "198.51.100.2")
    assert thief.post(SESSION, json={"token": secret}).status_code == 201
    for place in range(10):
        assert log_in(at(app, f"192.0.2.{place}"), WRONG) == 401
    assert log_in(thief, WRONG) == 429


def test_another_address_of_the_network_of_the_owner_is_not_locked_out(
    app: FastAPI, ada: Member
) -> None:
    del ada
    assert log_in(at(app, "2001:db8::1"), PASSWORD) == 201
    for place in range(10):
        assert log_in(at(app, f"192.0.2.{place}"), WRONG) == 401
    assert log_in(at(app, "2001:db8::2"), PASSWORD) == 201
    assert log_in(at(app, "2001:db8:1::1"), PASSWORD) == 429


def test_guesses_that_are_refused_write_nothing(
    app: FastAPI, ada: Member, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    del ada
    thief = at(app, "198.51.100.3")
    for place in range(10):
        assert log_in(thief, WRONG, f"user-{place}") == 401

    def refuse(_database: Database) -> NoReturn:
        raise AssertionError("a write")

    monkeypatch.setattr(Database, "write", refuse)
    assert log_in(thief, WRONG, "another") == 429


def test_other_sites_may_not_guess(app: FastAPI, ada: Member) -> None:
    del ada
    evil = at(app, "127.0.0.1")
    headers = {"origin": "http://evil.example"}
    token = {"name": "ada", "password": PASSWORD, "token_name": "x"}
    for path, body in (("token", token), ("invitation/check", {"code": "ty_invitation_x"})):
        refused = evil.post(f"{API}/auth/{path}", json=body, headers=headers)
        assert refused.status_code == 403, refused.text


def test_hashes_and_cookies_appear_in_no_repr(context: Context, ada: Member) -> None:
    del ada
    account = find_account(context, "ada")
    assert account is not None
    assert "argon2" not in repr(account)
    browser = Browser("192.0.2.1", "", "secret-cookie")
    session = open_password_session(context, account, browser=browser)
    assert session.cookie not in repr(session)
    assert "secret-cookie" not in repr(browser)

"""Logins without a refresh token: the server cannot learn that a person has left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import update

from server.api.sso.issuer import Issuer
from server.api.sso.refresh import refresh_due
from server.core.context import Context
from server.core.people.identity_tables import identities
from tests.server.api.in_process import TestClient
from tests.server.api.sso.issuers import API, ORIGIN, SCOPES, Person, ShiftedClock, give
from tests.server.members import OURS, add_projects

Persons = Callable[..., Person]
HOUR = 3601


@pytest.fixture
def oidc() -> dict[str, Any]:
    return {"oidc_scopes": SCOPES.replace(" offline_access", "")}


@pytest.fixture(autouse=True)
def mapped(context: Context, admin: TestClient) -> None:
    add_projects(context)
    give(admin, "/research/vision", "member")


def test_groups_count_for_an_hour(person: Persons, context: Context, clock: ShiftedClock) -> None:
    ada = person("ada", groups=["/research/vision"])
    ada.log_in()
    clock.advance(HOUR - 60)
    assert ada.projects() == {OURS: "member"}
    clock.advance(61)
    assert ada.projects() == {}
    assert refresh_due(context, Issuer(context)) == 0
    ada.log_in()
    assert ada.projects() == {OURS: "member"}


def test_a_session_ends_after_twelve_hours(person: Persons, clock: ShiftedClock) -> None:
    ada = person("ada", groups=["/research/vision"])
    ada.log_in()
    made = ada.browser.post(f"{API}/tokens", json={"name": "x"}, headers=ORIGIN).json()
    assert made["expires_at"] == ada.session()["expires_at"], "a token does not outlive it"
    clock.advance(12 * 3600 - 60)
    assert ada.is_logged_in()
    clock.advance(61)
    assert not ada.is_logged_in()


def test_a_former_token_does_not_outlive_the_next_login(
    person: Persons, context: Context, clock: ShiftedClock, app: FastAPI
) -> None:
    """The issuer gave a refresh token when the token was made, and no longer does."""
    ada = person("ada", groups=["/research/vision"])
    ada.log_in()
    checked(context, "sealed")
    made = ada.browser.post(f"{API}/tokens", json={"name": "x"}, headers=ORIGIN).json()
    shell = TestClient(app, headers={"authorization": f"Bearer {made['secret']}"})
    checked(context, None)
    ada.log_in()
    clock.advance(12 * 3600 - 60)
    assert shell.get(f"{API}/auth/session").status_code == 200
    clock.advance(61)
    assert shell.get(f"{API}/auth/session").status_code == 401


def checked(context: Context, refresh_token: str | None) -> None:
    """Store that the server can check persons with this token, or cannot."""
    with context.database.write() as connection:
        connection.execute(update(identities).values(refresh_token=refresh_token))

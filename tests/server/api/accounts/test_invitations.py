"""Invitations: one-time codes that set passwords, and end with the rights of their maker."""

from __future__ import annotations

from fastapi import FastAPI

from tests.server.api.accounts.people import API, ORIGIN, PASSWORD, URL, invited, joined
from tests.server.api.in_process import TestClient


def test_an_invited_user_sets_a_password_and_logs_in(
    app: FastAPI, admin: TestClient, anonymous: TestClient
) -> None:
    assert anonymous.get(f"{API}/auth/ways").json() == {"ways": [{"kind": "token", "name": None}]}
    made = invited(admin, "ada", email="ada@example.org")
    assert made["link"] == f"{URL}/invitation#{made['code']}"
    assert made["user"]["invited_until"] == made["expires_at"]
    assert made["user"]["has_password"] is False
    checked = anonymous.post(f"{API}/auth/invitation/check", json={"code": made["code"]})
    assert checked.json()["name"] == "ada"
    body = {"code": made["code"], "password": PASSWORD}
    accepted = anonymous.post(f"{API}/auth/invitation", json=body, headers=ORIGIN)
    assert accepted.status_code == 201, accepted.text
    session = anonymous.get(f"{API}/auth/session").json()
    assert (session["kind"], session["is_shared"]) == ("password", True)
    assert session["user"] == {
        "id": made["user"]["id"],
        "name": "ada",
        "role": "user",
        "email": "ada@example.org",
        "has_password": True,
        "issuer": None,
    }
    again = anonymous.post(f"{API}/auth/invitation", json=body, headers=ORIGIN)
    assert again.status_code == 401
    ways = anonymous.get(f"{API}/auth/ways").json()["ways"]
    assert [each["kind"] for each in ways] == ["password", "token"]
    other = TestClient(app, base_url=URL)
    login = {"name": "ada", "password": PASSWORD}
    assert other.post(f"{API}/auth/session", json=login, headers=ORIGIN).status_code == 201
    listed = other.get(f"{API}/auth/sessions").json()["items"]
    assert sorted(each["is_current"] for each in listed) == [False, True]
    token = other.post(f"{API}/auth/token", json={**login, "token_name": "laptop"})
    assert token.status_code == 201, token.text
    assert token.json()["user"] == "ada"


def test_jobs_show_their_owner(app: FastAPI, admin: TestClient, client: TestClient) -> None:
    ada = joined(app, admin, "ada")
    mine = ada.browser.post(f"{API}/jobs", json={}, headers=ORIGIN)
    assert mine.status_code == 201, mine.text
    assert mine.json()["owner"] == "ada"
    client.post(f"{API}/jobs", json={})
    listed = client.get(f"{API}/jobs").json()["items"]
    assert sorted(each["owner"] for each in listed) == ["ada", "admin"]
    by_owner = client.get(f"{API}/jobs", params={"owner": "ada"}).json()["items"]
    assert [each["id"] for each in by_owner] == [mine.json()["id"]]
    own = ada.browser.get(f"{API}/jobs", params={"mine": "true"}).json()["items"]
    assert [each["id"] for each in own] == [mine.json()["id"]]
    counts = client.get(f"{API}/jobs/counts", params={"owner": "ada"}).json()["by_state"]
    assert counts["queued"] == 1
    events = client.get(f"{API}/jobs/{mine.json()['id']}/events").json()["items"]
    assert [(each["actor"], each["user"]) for each in events] == [("ada", "ada")]

"""Rows of refused attempts and of the admin token: known callers, machines, and strangers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy.exc import OperationalError

from server.api.audit import refused_attempts
from server.api.audit.refused_attempts import MAX_COUNTS, MAX_ROWS, RefusedAttempts
from server.core.audit.chain import seal
from server.core.audit.request_rows import (
    AuditedRequest,
    CallerIdentity,
)
from server.core.audit.verification import verify
from server.core.context import Context
from server.core.subject import ADMIN_USER_ID
from tests.server.api.accounts.people import API, URL, WRONG, at, joined, log_in
from tests.server.api.in_process import TestClient
from tests.server.clock import FakeClock
from tests.server.core.audit.entries import emptied, rows_of, waiting


def refused(app: FastAPI, context: Context, *, is_over: bool = False) -> list[dict[str, Any]]:
    """Return the rows of refused attempts and of reads."""
    attempts = app.state.refused_attempts
    assert isinstance(attempts, RefusedAttempts)
    attempts.flush(is_over=is_over)
    return [row for row in waiting(context) if row["outcome"] != "changed"]


def test_refused_attempts_of_known_callers_have_rows(
    app: FastAPI, admin: TestClient, context: Context
) -> None:
    ada = joined(app, admin, "ada")
    admin.post(f"{API}/projects", json={"name": "hidden"})
    token = ada.token()
    client = TestClient(app, base_url=URL, headers=token)
    emptied(context)
    assert client.post(f"{API}/projects", json={"name": "x"}).status_code == 403
    assert client.get(f"{API}/projects/hidden").status_code == 404
    own = client.get(f"{API}/tokens").json()["items"][0]
    client.delete(f"{API}/tokens/{own['id']}")
    assert client.get(f"{API}/jobs").status_code == 401
    rows = [row for row in refused(app, context) if row["outcome"] == "refused"]
    assert [(row["operation"], row["status"]) for row in rows] == [
        ("projects_create", 403),
        ("projects_get", 404),
        ("jobs_list", 401),
    ]
    assert {row["user"] for row in rows} == {"ada"}
    assert {row["token_id"] for row in rows} == {own["id"]}
    assert rows[1]["object"] == "projects/hidden"


@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH"])
def test_no_row_has_a_credential_of_a_path(
    app: FastAPI, admin: TestClient, context: Context, method: str
) -> None:
    """A client that mistakes the secret of a token for its id must not store it for all readers."""
    ada = joined(app, admin, "ada")
    client = TestClient(app, base_url=URL, headers=ada.token())
    secret = ada.token("second")["authorization"].removeprefix("Bearer ")
    emptied(context)
    for template in ("tokens/{}", "users/{}", "jobs/{}", "projects/{}", "projects/x/members/{}"):
        client.request(method, f"{API}/{template.format(secret)}")
        client.request(method, f"{API}/{template.format('Correct horse battery')}")
    rows = refused(app, context, is_over=True)
    text = str(rows)
    assert secret not in text
    assert "horse" not in text
    assert method == "PATCH" or "'object': 'projects/********'" in text


def test_machines_are_counted(app: FastAPI, admin: TestClient, context: Context) -> None:
    """A node with a revoked token calls each second, and each node of a cluster may do so."""
    made = [admin.post(f"{API}/tokens", json={"name": f"j{n}", "kind": "join"}) for n in range(15)]
    for each in made:
        token = {"Authorization": f"Bearer {each.json()['secret']}"}
        client = TestClient(app, base_url=URL, headers=token)
        for _ in range(30):
            assert client.post(f"{API}/workers/heartbeat", json={}).status_code == 403
    rows = [row for row in refused(app, context, is_over=True) if row["outcome"] == "refused"]
    assert len(rows) == MAX_COUNTS + 1
    assert sum(row["count"] for row in rows) == 15 * 30
    assert rows[0]["token_id"] == made[0].json()["id"]


def test_refused_registrations_are_counted(
    app: FastAPI, admin: TestClient, context: Context
) -> None:
    """A worker tries again, also with a token that has ended."""
    made = admin.post(f"{API}/tokens", json={"name": "join", "kind": "join"}).json()
    admin.delete(f"{API}/tokens/{made['id']}")
    token = {"Authorization": f"Bearer {made['secret']}"}
    client = TestClient(app, base_url=URL, headers=token)
    for _ in range(3):
        assert client.post(f"{API}/workers/register", json={}).status_code == 401
    (row,) = [row for row in refused(app, context, is_over=True) if row["outcome"] == "refused"]
    assert (row["operation"], row["count"], row["token_id"]) == ("workers_register", 3, made["id"])


def test_a_token_that_has_ended_keeps_its_holder(
    app: FastAPI, admin: TestClient, context: Context
) -> None:
    """However many unknown tokens others send."""
    ada = joined(app, admin, "ada")
    token = ada.token()
    client = TestClient(app, base_url=URL, headers=token)
    own = client.get(f"{API}/tokens").json()["items"][0]
    client.delete(f"{API}/tokens/{own['id']}")
    emptied(context)
    for number in range(60):
        wrong = {"Authorization": f"Bearer ty_api_{number:043}"}
        TestClient(app, base_url=URL, headers=wrong).get(f"{API}/jobs")
    assert client.get(f"{API}/jobs").status_code == 401
    (row,) = [row for row in refused(app, context) if row.get("user") == "ada"]
    assert (row["status"], row["token_id"], "count" in row) == (401, own["id"], False)


def test_an_expired_session_and_a_foreign_page_have_their_user(
    app: FastAPI, admin: TestClient, context: Context, clock: FakeClock
) -> None:
    ada = joined(app, admin, "ada")
    emptied(context)
    foreign = {"Origin": "https://elsewhere.example"}
    reply = ada.browser.post(f"{API}/projects", json={"name": "x"}, headers=foreign)
    assert reply.status_code == 403
    clock.advance(31 * 86_400)
    assert ada.browser.get(f"{API}/jobs").status_code == 401
    rows = [row for row in refused(app, context) if row["outcome"] == "refused"]
    assert [(row["status"], row["user"], row["user_id"]) for row in rows] == [
        (403, "ada", ada.id),
        (401, "ada", ada.id),
    ]
    assert all(row["session_id"] for row in rows)


def test_a_shutdown_goes_on_without_the_database(
    context: Context, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = RefusedAttempts(context)
    attempts.start()
    attempts.note(AuditedRequest(clock, caller=CallerIdentity(user="ada", user_id="7" * 26)), 403)

    def fail(*_: object) -> None:
        raise RuntimeError("down")

    with monkeypatch.context() as patch:
        patch.setattr(type(context.database), "write", fail)
        attempts.stop()
    attempts.flush()
    assert [row["user"] for row in waiting(context)] == ["ada"]


def test_what_admins_do_not_find_is_no_refusal(
    app: FastAPI, client: TestClient, context: Context
) -> None:
    assert client.get(f"{API}/projects/missing").status_code == 404
    assert refused(app, context) == []


def test_a_loop_of_refusals_is_counted(
    app: FastAPI, admin: TestClient, context: Context, clock: FakeClock
) -> None:
    token = joined(app, admin, "ada").token()
    client = TestClient(app, base_url=URL, headers=token)
    emptied(context)
    for _ in range(MAX_ROWS + 30):
        assert client.post(f"{API}/projects", json={"name": "x"}).status_code == 403
    assert len(refused(app, context)) == MAX_ROWS
    clock.advance(60)
    *_, counted = refused(app, context)
    assert (counted["count"], counted["user"], counted["operation"]) == (
        30,
        "ada",
        "projects_create",
    )
    assert client.post(f"{API}/projects", json={"name": "x"}).status_code == 403
    assert "count" not in refused(app, context)[-1]


def test_tokens_of_a_user_share_the_limit(context: Context, clock: FakeClock) -> None:
    """A user makes many tokens. Those of the built-in user belong to different people."""
    attempts = RefusedAttempts(context)
    for user_id in ("7" * 26, ADMIN_USER_ID):
        for number in range(MAX_ROWS + 5):
            caller = CallerIdentity(user_id=user_id, token_id=f"{number % 2:026}")
            attempts.note(AuditedRequest(clock, operation="jobs_stop", caller=caller), 403)
    attempts.flush()
    rows = Counter(row["user_id"] for row in waiting(context))
    assert rows == {"7" * 26: MAX_ROWS, ADMIN_USER_ID: MAX_ROWS + 5}


def test_attempts_without_a_token_are_counted_by_address(
    app: FastAPI, context: Context, clock: FakeClock
) -> None:
    for host in ("192.0.2.1", "2001:db8::1", "2001:db8::2"):
        for _ in range(4):
            assert at(app, host).get(f"{API}/jobs").status_code == 401
    assert log_in(at(app, "192.0.2.1"), WRONG, "nobody-known") == 401
    clock.advance(60)
    rows = refused(app, context)
    found = {(row["operation"], row["address"]): row["count"] for row in rows}
    assert found == {
        ("jobs_list", "192.0.2.1"): 4,
        ("jobs_list", "2001:db8::/64"): 8,
        ("access_log_in", "192.0.2.1"): 1,
    }
    assert not any("user" in row or "object" in row for row in rows)


def test_a_flood_from_many_addresses_has_a_bounded_number_of_rows(
    app: FastAPI, context: Context, clock: FakeClock
) -> None:
    attempts = app.state.refused_attempts
    for number in range(5000):
        attempts.note(AuditedRequest(clock, address=f"10.1.{number // 256}.{number % 256}"), 401)
    rows = refused(app, context, is_over=True)
    assert len(rows) == MAX_COUNTS + 1
    assert sum(row["count"] for row in rows) == 5000
    assert rows[-1]["address"] == "others"


def test_a_database_that_does_not_answer_keeps_the_refusals(
    app: FastAPI, context: Context, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_attempts, "MAX_WAITING", 10)
    attempts = RefusedAttempts(context)
    ada = CallerIdentity(user="ada", user_id="7" * 26)
    for number in range(15):
        attempts.note(AuditedRequest(clock, operation=f"op_{number}", caller=ada), 403)

    def fail(*_: object) -> None:
        raise OperationalError("BEGIN", None, Exception("down"))

    with monkeypatch.context() as patch:
        patch.setattr(type(context.database), "write", fail)
        with pytest.raises(OperationalError):
            attempts.flush()
    attempts.flush()
    assert len(waiting(context)) == 10
    attempts.flush()
    assert len(waiting(context)) == 10


def test_reads_by_the_admin_token_have_a_row_each_ten_minutes(
    app: FastAPI, admin: TestClient, client: TestClient, context: Context, clock: FakeClock
) -> None:
    for _ in range(5):
        assert admin.get(f"{API}/jobs").status_code == 200
        assert client.get(f"{API}/jobs").status_code == 200
    (used,) = refused(app, context)
    assert (used["outcome"], used["break_glass"], used["operation"]) == ("read", True, "jobs_list")
    clock.advance(601)
    assert admin.get(f"{API}/nodes").status_code == 200
    assert len(refused(app, context)) == 2


@pytest.mark.parametrize(
    "path", ["projects/a%00b", "projects/%0a%F0%9F%92%A9", "jobs/" + "x" * 900]
)
def test_any_path_can_be_sealed(
    app: FastAPI, admin: TestClient, context: Context, path: str
) -> None:
    """Clients choose the path: a text that a database refuses would stop the chain."""
    token = joined(app, admin, "ada").token()
    TestClient(app, base_url=URL, headers=token).get(f"{API}/{path}")
    refused(app, context)
    list(seal(context))
    assert rows_of(context)
    assert verify(context).problems == []

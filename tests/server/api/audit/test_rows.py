"""Which rows the audit log has: of changes, logins and commands, and what they contain."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import insert

from server.api.auth.admin import ensure_admin_token, replace_admin_token, revoke_made
from server.api.auth.service import create_token
from server.api.auth.tokens import TokenKind, make_token
from server.app.keys import rotate
from server.core.audit.audit_tables import audit_pending
from server.core.audit.request_rows import (
    LENGTHS,
    Audited,
    AuditedRequest,
    CallerIdentity,
    stored_form,
)
from server.core.context import Context
from server.core.database.engine import OBSERVER
from tests.server.api.accounts.people import API, ORIGIN, PASSWORD, URL, WRONG, joined, log_in
from tests.server.api.audit.test_refused_rows import refused
from tests.server.api.in_process import TestClient
from tests.server.clock import FakeClock
from tests.server.core.audit.entries import emptied, waiting
from trainyard.protocol.audit_log.views import AuditOutcome
from trainyard.protocol.rest.access import TokenRequest


def changes(context: Context) -> list[dict[str, Any]]:
    return [row for row in waiting(context) if row["outcome"] == "changed"]


def test_a_row_names_the_caller_the_object_and_the_values(
    app: FastAPI, admin: TestClient, context: Context
) -> None:
    ada = joined(app, admin, "ada")
    admin.post(f"{API}/projects", json={"name": "vision"})
    emptied(context)
    given = {"x-request-id": "change-7"}
    admin.patch(f"{API}/projects/vision", json={"weight": 2, "max_slots": 8}, headers=given)
    admin.put(f"{API}/projects/vision/members/ada", json={"role": "viewer"})
    admin.put(f"{API}/projects/vision/members/ada", json={"role": "maintainer"})
    admin.patch(f"{API}/users/{ada.id}", json={"role": "operator"})
    weight, first, second, role = changes(context)
    assert weight["before"] == {"max_slots": None, "weight": 1.0}
    assert weight["after"] == {"max_slots": 8, "weight": 2.0}
    assert (weight["operation"], weight["object"]) == ("projects_change", "projects/vision")
    assert (weight["project"], weight["request_id"]) == ("vision", "change-7")
    assert (weight["user"], weight["token"], weight["break_glass"]) == ("admin", "admin", True)
    assert weight["address"] == "testclient"
    assert (first["before"], first["after"]) == ({"role": None}, {"role": "viewer"})
    assert (second["before"], second["after"]) == ({"role": "viewer"}, {"role": "maintainer"})
    assert second["object"] == "projects/vision/members/ada"
    assert role["object"] == f"users/{ada.id}"
    assert (role["before"]["role"], role["after"]) == ("user", {"role": "operator"})


def test_a_request_that_changes_an_object_twice_has_one_row(
    app: FastAPI, admin: TestClient, context: Context
) -> None:
    joined(app, admin, "ada")
    admin.post(f"{API}/projects", json={"name": "vision"})
    emptied(context)
    body = {"role": "member", "max_slots": 4}
    assert admin.put(f"{API}/projects/vision/members/ada", json=body).is_success
    (row,) = changes(context)
    assert row["before"] == {"max_running": None, "max_slots": None, "role": None}
    assert row["after"] == {"max_running": None, "max_slots": 4, "role": "member"}


def test_a_job_has_its_project_and_its_priority(client: TestClient, context: Context) -> None:
    job_id = client.post(f"{API}/jobs", json={"name": "tiny"}).json()["id"]
    client.post(f"{API}/jobs/{job_id}/priority", json={"priority": 5})
    submitted, raised = changes(context)
    assert submitted["object"] == raised["object"] == f"jobs/{job_id}"
    assert submitted["project"] == raised["project"] == "default"
    assert (raised["before"], raised["after"]) == ({"priority": 0}, {"priority": 5})
    assert "break_glass" not in submitted
    assert submitted["token"] == "someone"


def test_grouped_submissions_have_their_own_callers(
    app: FastAPI, admin: TestClient, context: Context
) -> None:
    """One transaction serves requests of several people, and refuses one of them."""
    people = [joined(app, admin, f"user-{number}") for number in range(6)]
    emptied(context)

    def submit(place: int) -> tuple[int, str]:
        client = TestClient(app, base_url=URL, headers=tokens[place])
        project = "missing" if place == 3 else "default"
        reply = client.post(f"{API}/jobs", json={"name": f"of-{place}", "project": project})
        return reply.status_code, reply.json().get("id", "")

    tokens = [person.token() for person in people]
    emptied(context)
    with ThreadPoolExecutor(6) as threads:
        replies = [*threads.map(submit, range(6))]
    assert [status for status, _ in replies] == [201, 201, 201, 422, 201, 201]
    found = {row["object"]: row["user"] for row in changes(context)}
    assert found == {
        f"jobs/{job_id}": f"user-{place}" for place, (_, job_id) in enumerate(replies) if job_id
    }


def test_logins_and_failed_logins_of_a_known_account_have_rows(
    app: FastAPI, admin: TestClient, anonymous: TestClient, context: Context
) -> None:
    ada = joined(app, admin, "ada")
    emptied(context)
    assert log_in(anonymous, WRONG) == 401
    assert log_in(anonymous, PASSWORD) == 201
    (login,) = changes(context)
    assert (login["operation"], login["user"], login["user_id"]) == ("access_log_in", "ada", ada.id)
    assert login["session_id"]
    assert "token" not in login
    (failed,) = [row for row in refused(app, context) if row["outcome"] == "refused"]
    assert (failed["user"], failed["user_id"], failed["status"]) == ("ada", ada.id, 401)
    assert "count" not in failed


def test_a_wrong_own_password_is_no_change(
    app: FastAPI, admin: TestClient, context: Context
) -> None:
    ada = joined(app, admin, "ada")
    emptied(context)
    body = {"current": WRONG, "new": "a long new password"}
    assert ada.browser.put(f"{API}/auth/password", json=body, headers=ORIGIN).status_code == 401
    assert changes(context) == []
    assert refused(app, context)[0]["user"] == "ada"
    body["current"] = PASSWORD
    assert ada.browser.put(f"{API}/auth/password", json=body, headers=ORIGIN).status_code == 204
    assert [row["operation"] for row in changes(context)] == ["access_put_password"]


def test_a_change_without_a_caller_has_a_row(context: Context, clock: FakeClock) -> None:
    request = AuditedRequest(clock, operation="jobs_stop", audited=Audited.CHANGE, address="::1")
    token = OBSERVER.set(request)
    try:
        with context.database.write():
            pass
    finally:
        OBSERVER.reset(token)
    (row,) = waiting(context)
    assert (row["operation"], row["address"], "user" in row) == ("jobs_stop", "::1", False)


def test_texts_and_fields_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    long = {"name": "x" * 999, "scopes": [f"s{n}" for n in range(99)]}
    row = stored_form(dict.fromkeys(LENGTHS, "y" * 999) | {"after": long, "status": None})
    assert {name: len(row[name]) for name in LENGTHS} == LENGTHS
    assert (len(row["after"]["name"]), len(row["after"]["scopes"])) == (200, 20)
    assert "status" not in row
    for field in ("password", "env", "secret", "hash", "token"):
        assert stored_form({"after": {field: "x", "name": "y"}})["after"] == {"name": "y"}
        assert f"not in FIELDS of the audit log: {field}" in caplog.text


def test_no_field_has_a_token() -> None:
    secret = make_token(TokenKind.API)
    row = stored_form(
        {"object": f"tokens/{secret}", "before": {"name": secret, "scopes": [secret]}}
    )
    assert row == {
        "object": "tokens/********",
        "before": {"name": "********", "scopes": ["********"]},
    }


def test_a_rolled_back_transaction_leaves_no_row(context: Context, clock: FakeClock) -> None:
    request = AuditedRequest(clock, operation="jobs_stop", audited=Audited.CHANGE)
    request.caller = CallerIdentity(user="ada")
    token = OBSERVER.set(request)
    try:
        with pytest.raises(RuntimeError, match="later"):
            store_then_fail(context)
        assert waiting(context) == []
        for _ in range(2):  # a request with two transactions has one row
            with context.database.write():
                pass
    finally:
        OBSERVER.reset(token)
    assert [row["operation"] for row in waiting(context)] == ["jobs_stop"]


def store_then_fail(context: Context) -> None:
    with context.database.write() as connection:
        row = stored_form({"at": context.now(), "outcome": AuditOutcome.CHANGED})
        connection.execute(insert(audit_pending).values(entry=row))
        raise RuntimeError("later")


def test_a_register_of_a_node_has_the_join_token(
    admin: TestClient, app: FastAPI, context: Context
) -> None:
    made = admin.post(f"{API}/tokens", json={"name": "joins", "kind": "join"}).json()
    assert made["kind"] == "join"
    rows: Sequence[dict[str, Any]] = changes(context)
    assert rows[-1]["after"]["kind"] == "join"
    assert made["secret"] not in str(rows)


def test_commands_of_the_server_have_rows(context: Context) -> None:
    ensure_admin_token(context)
    for number in range(25):
        create_token(context, TokenRequest(name=f"t{number:02}"))
    rotate(context)
    replaced = replace_admin_token(context)
    revoke_made(context, replaced.made, nodes=(), sources=())
    rows = waiting(context)
    assert [row["operation"] for row in rows] == [
        "admin_token_created",
        "key_rotated",
        "admin_token_replaced",
        "tokens_revoked",
    ]
    assert all(row["break_glass"] for row in rows)
    before = rows[-1]["before"]
    assert (len(before["revoked"]), before["rows"]) == (20, 25)

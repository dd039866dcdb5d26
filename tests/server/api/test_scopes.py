"""Scopes of tokens: stored, shown, inherited by sessions, and never more than their creator has."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from server.api.auth.permissions import WITHOUT_SCOPES
from server.api.auth.principals import find_holders
from server.api.auth.service import create_token
from server.core.context import Context
from server.core.database.tables import jobs, tokens
from tests.server.api.in_process import TestClient
from tests.server.api.test_access import API, ORIGIN, SESSION
from tests.server.api.test_permissions import bearer
from tests.server.statements import statements
from trainyard.protocol.rest.access import Permission, TokenRequest

READ, WRITE = Permission.JOBS_READ, Permission.JOBS_WRITE


def of_scopes(context: Context, *scopes: Permission, name: str = "ci") -> dict[str, str]:
    """Store a token with these scopes and return its header."""
    return dict(bearer(create_token(context, TokenRequest(name=name, scopes=scopes))[1]))


def test_scopes_are_stored_and_shown_in_the_order_of_the_table(admin: TestClient) -> None:
    body = {"name": "ci", "scopes": ["jobs:write", "jobs:read"]}
    made = admin.post(f"{API}/tokens", json=body)
    assert made.status_code == 201, made.text
    assert made.json()["scopes"] == ["jobs:read", "jobs:write"]
    assert admin.post(f"{API}/tokens", json={"name": "other"}).json()["scopes"] is None
    listed = {each["name"]: each["scopes"] for each in admin.get(f"{API}/tokens").json()["items"]}
    assert listed == {"admin": None, "ci": ["jobs:read", "jobs:write"], "other": None}


@pytest.mark.parametrize(
    ("fields", "pointer", "detail"),
    [
        ({"scopes": ["jobs:read", "jobs:fly"]}, "/scopes/1", "jobs:fly"),
        ({"scopes": ["jobs:read", "jobs:write", "jobs:read"]}, "/scopes/2", "'jobs:read'"),
        ({"scopes": []}, "/scopes", "1"),
        ({"scopes": "jobs:read"}, "/scopes", "jobs:read"),
        ({"scopes": ["jobs:read"], "kind": "join"}, "/scopes", "only for kind 'api'"),
        ({"scopes": ["jobs:read"], "kind": "login"}, "/scopes", "only for kind 'api'"),
    ],
)
def test_scopes_that_are_not_legal_are_refused_by_name(
    admin: TestClient, fields: dict[str, Any], pointer: str, detail: str
) -> None:
    refused = admin.post(f"{API}/tokens", json={"name": "ci", **fields})
    assert refused.status_code == 422, refused.text
    (problem,) = refused.json()["errors"]
    assert problem["pointer"] == pointer
    assert detail in problem["detail"]
    assert [each["name"] for each in admin.get(f"{API}/tokens").json()["items"]] == ["admin"]


def test_a_session_has_the_permissions_of_its_token(
    anonymous: TestClient, context: Context
) -> None:
    header = of_scopes(context, READ)
    token = header["authorization"].removeprefix("Bearer ")
    opened = anonymous.post(SESSION, json={"token": token}, headers=ORIGIN)
    assert opened.json()["permissions"] == ["jobs:read"]
    assert anonymous.get(SESSION).json()["permissions"] == ["jobs:read"]
    assert anonymous.get(f"{API}/jobs").status_code == 200
    refused = anonymous.post(f"{API}/jobs", json={}, headers=ORIGIN)
    assert refused.status_code == 403
    assert "this needs jobs:write; the token 'ci' has jobs:read" in refused.json()["detail"]


def test_the_session_lists_what_a_token_without_scopes_has(
    client: TestClient, admin: TestClient
) -> None:
    assert set(client.get(SESSION).json()["permissions"]) == WITHOUT_SCOPES
    assert admin.get(SESSION).json()["permissions"] == list(Permission)


def test_scopes_take_no_further_query(context: Context) -> None:
    token = of_scopes(context, READ)["authorization"].removeprefix("Bearer ")
    with statements(context) as seen:
        (holder,) = find_holders(context, [token])
    assert len([each for each in seen if not each.startswith("BEGIN")]) == 1, seen
    assert not isinstance(holder, Exception)
    assert holder.permissions == {READ}


def test_a_scope_of_a_newer_version_gives_nothing(
    anonymous: TestClient, admin: TestClient, context: Context
) -> None:
    header = of_scopes(context, READ)
    stored = update(tokens).where(tokens.c.name == "ci").values(scopes=["jobs:fly", "jobs:read"])
    with context.database.write() as connection:
        connection.execute(stored)
    assert anonymous.get(SESSION, headers=header).json()["permissions"] == ["jobs:read"]
    listed = {each["name"]: each["scopes"] for each in admin.get(f"{API}/tokens").json()["items"]}
    assert listed["ci"] == ["jobs:read"]


# ---- nothing gives more than its creator has -----------------------------------------------------


def test_a_token_gives_only_permissions_that_it_has(
    anonymous: TestClient, context: Context
) -> None:
    header = of_scopes(context, Permission.TOKENS_ADMIN, READ, name="maker")
    made = anonymous.post(
        f"{API}/tokens", json={"name": "reader", "scopes": ["jobs:read"]}, headers=header
    )
    assert made.status_code == 201, made.text
    for scopes in (["jobs:write"], ["jobs:read", "code:run"], None):
        body = {"name": "more", "scopes": scopes}
        refused = anonymous.post(f"{API}/tokens", json=body, headers=header)
        assert refused.status_code == 403, refused.text
        assert "'maker' has jobs:read, tokens:admin" in refused.json()["detail"]
        assert refused.json()["errors"][0]["pointer"] == "/scopes"
    with context.database.read() as connection:
        assert set(connection.scalars(select(tokens.c.name))) == {"maker", "reader"}


def test_only_the_admin_token_creates_login_codes(
    anonymous: TestClient, admin: TestClient, context: Context
) -> None:
    header = of_scopes(context, *Permission)
    body = {"name": "link", "kind": "login"}
    refused = anonymous.post(f"{API}/tokens", json=body, headers=header)
    assert refused.status_code == 403
    assert "opens a session of the admin token" in refused.json()["detail"]
    assert admin.post(f"{API}/tokens", json=body).status_code == 201
    joins = anonymous.post(f"{API}/tokens", json={"name": "n", "kind": "join"}, headers=header)
    assert joins.status_code == 201


# ---- code ----------------------------------------------------------------------------------------

PROGRAM = {"program": {"command": ["python", "train.py"]}}
FACTORY = {"model": {"factory": "mine:build", "code": "data:mine"}}
VARIABLE = {"env": {"HF_TOKEN": "secret"}}


@pytest.mark.parametrize(
    ("spec", "field"),
    [(PROGRAM, "/program"), (FACTORY, "/model/factory"), (VARIABLE, "/env/HF_TOKEN")],
)
def test_a_submission_with_code_needs_the_permission_to_run_code(
    anonymous: TestClient, context: Context, spec: dict[str, Any], field: str
) -> None:
    without, name = of_scopes(context, READ, WRITE), {"name": "mine"}
    refused = anonymous.post(f"{API}/jobs", json=spec | name, headers=without)
    assert refused.status_code == 403, refused.text
    assert refused.json()["detail"] == (
        f"this needs code:run, because of {field}; the token 'ci' has jobs:read, jobs:write"
    )
    assert [each["pointer"] for each in refused.json()["errors"]] == [field]
    with context.database.read() as connection:
        assert connection.scalars(select(jobs.c.id)).all() == []
    plain = anonymous.post(f"{API}/jobs", json={"env": {"NCCL_DEBUG": "INFO"}}, headers=without)
    assert plain.status_code == 201, plain.text
    with_code = of_scopes(context, READ, WRITE, Permission.CODE_RUN, name="coder")
    made = anonymous.post(f"{API}/jobs", json=spec | name, headers=with_code)
    assert "code:run" not in made.text, "what remains is the check of the server's settings"
    packs = f"{API}/packs?digest=sha256:{'0' * 64}"
    assert "code:run" in anonymous.post(packs, headers=without).json()["detail"]

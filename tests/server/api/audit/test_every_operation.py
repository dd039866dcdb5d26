"""Every operation of the OpenAPI document: its change has one row, and no row has a secret."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI

from server.api.audit.audited_operations import (
    CHANGES,
    NOT_AUDITED,
    SENSITIVE,
    UndeclaredAuditError,
    audits_of,
)
from server.api.auth.dependencies import public
from server.app import factory
from server.core.context import Context
from tests.server.api.accounts.people import ORIGIN, PASSWORD, URL, invited, joined
from tests.server.api.in_process import TestClient
from tests.server.api.published import DOCUMENT
from tests.server.api.test_role_matrix import QUERY, Stage, example
from tests.server.core.audit.entries import emptied, waiting
from tests.server.harness import BRINGS_CODE, Harness
from tests.server.members import OURS, THEIRS, add_projects

API = "/api/v1"
MARK = "marker-of-a-secret"
"""Part of each secret that a body has."""
SECRETS = re.compile(rf"{MARK}|ty_[a-z]+_\w+|{PASSWORD}|argon2")
ELSEWHERE = {
    "packs_upload_pack": "its body is no JSON",
    "access_decide_device": "needs a device",
    "access_get_device_token": "needs a device",
    "access_end_issuer_login": "needs an issuer",
    "access_unlink_identity": "needs an issuer",
    "access_log_out_of_issuer": "needs an issuer",
    "access_log_out_by_issuer": "needs an issuer",
    "users_unlink": "needs an issuer",
    "checkpoints_export": "its example fits no tiny job",
    "checkpoints_sample": "its example fits no tiny job",
    "sources_delete": "needs a source",
    "sources_pause": "needs a source",
    "sources_unpause": "needs a source",
    "sources_check": "needs a source",
    "sources_request": "needs a source",
    "sources_cancel": "needs a source",
    "sources_end": "needs a source",
    "provisioners_register": "needs a join token",
    "workers_register": "needs a join token",
}
"""Changes that the drive leaves out or cannot make, each with the reason."""
BODIES: Mapping[str, Any] = {
    "jobs_submit": {"name": "tiny", "project": OURS, "env": {"HF_TOKEN": MARK}},
    "jobs_resume": {},
    "jobs_fork": {"changes": {"training": {"steps": 50}, "env": {"HF_TOKEN": MARK}}},
    "jobs_set_priority": {"priority": 7},
    "jobs_set_owner": {"owner": "ada"},
    "jobs_post_request": {"kind": "save"},
    "shells_open_shell": {"argv": ["echo", MARK]},
    "members_put": {"role": "maintainer"},
    "members_put_group": {"group": "staff/vision", "role": "member"},
    "members_patch_limits": {"max_slots": 3},
    "members_create_service_account": {"name": "weekly"},
    "members_create_token": {"name": "ci"},
    "access_create": {"name": "laptop"},
    "access_put_password": {"current": PASSWORD, "new": f"{MARK} which is long"},
    "access_create_token": {"name": "bob", "password": PASSWORD, "token_name": "laptop"},
    "access_log_in": {"name": "bob", "password": PASSWORD},
    "users_create": {"name": "carol", "email": "carol@example.org"},
    "users_change": {"role": "operator"},
    "projects_create": {"name": "vision"},
    "projects_change": {"weight": 3.0},
    "projects_delete": None,
    "secrets_put": {"value": MARK},
    "secrets_put_own": {"value": MARK},
    "nodes_label": {"labels": {"zone": "a"}},
}


def operations() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, found in methods.items():
            if path.startswith(API):
                yield method, path, found


@BRINGS_CODE
def test_every_change_has_one_row_and_nothing_else_has(
    app: FastAPI,
    admin: TestClient,
    context: Context,
    harness: Harness,
    caplog: pytest.LogCaptureFixture,
) -> None:
    add_projects(context, OURS, THEIRS)
    harness.add_node("node-1", slots=200)
    bob = joined(app, admin, "bob")
    ada = joined(app, admin, "ada", role="admin")
    stage = Stage(context, harness, user_id=ada.id)
    admin.post(f"{API}/projects/{OURS}/service-accounts", json={"name": "nightly"})
    admin.put(f"{API}/projects/{OURS}/members/bob", json={"role": "member"})
    driven, wrong, seen = set(), [], []
    for method, template, found in operations():
        name, audited = found["operationId"], found["x-audited"]
        if (
            name in ELSEWHERE
            or "/workers/" in template
            or (method == "get" and name not in SENSITIVE)
        ):
            continue
        own = "shells" in template or "/users/me/" in template
        client = ada.browser if own else caller_of(name, app=app, admin=admin)
        path = place_of(template, name, bob_id=bob.id, client=client, stage=stage)
        body = BODIES.get(name, example(found))
        if name == "access_accept":
            body = {"code": invited(admin, "dora")["code"], "password": PASSWORD}
        needed = [p for p in found.get("parameters", ()) if p.get("required")]
        given: dict[str, Any] = {
            **QUERY,
            "offset": 0,
            "size": 1,
            "kind": "image",
            "name": "x",
            "rank": 0,
            "node": "node-1",
            "digest": "sha256:" + "0" * 64,
        }
        query = {p["name"]: given[p["name"]] for p in needed if p["in"] == "query"}
        app.state.refused_attempts.flush()
        emptied(context)
        headers = ORIGIN if client is not admin else {}
        reply = client.request(method, path, json=body, params=query, headers=headers)
        app.state.refused_attempts.flush()
        rows = emptied(context)
        seen += rows
        of_it = [row for row in rows if row["operation"] == name and row["outcome"] != "refused"]
        changed = [row for row in of_it if row["outcome"] == "changed"]
        is_done = reply.is_success
        if len(changed) != (audited == "change" and is_done):
            wrong.append((name, reply.status_code, reply.text[:200], rows))
        if audited == "sensitive" and [row["outcome"] for row in of_it] != ["read"]:
            wrong.append((name, reply.status_code, reply.text[:200], rows))
        for row in changed:
            assert row["request_id"] == reply.headers["x-request-id"]
            assert row["user"]
            assert row["address"]
        if is_done and audited != "no":
            driven.add(name)
    assert wrong == []
    assert {*CHANGES, *SENSITIVE} - driven == ELSEWHERE.keys()
    assert not SECRETS.search(json.dumps(seen))
    assert "not in FIELDS" not in caplog.text


def caller_of(name: str, *, app: FastAPI, admin: TestClient) -> TestClient:
    if name in {"access_log_in", "access_create_token", "access_accept"}:
        return TestClient(app, base_url=URL)
    if name in {"access_put_password", "access_log_out", "access_end_session"}:
        return joined(app, admin, name.replace("_", "-"), role="admin").browser
    return admin


def place_of(path: str, name: str, *, bob_id: str, client: TestClient, stage: Stage) -> str:
    if name == "projects_delete":
        return f"{API}/projects/vision"
    if name == "access_end_session":
        session = client.get(f"{API}/auth/sessions").json()["items"][0]
        return path.replace("{session_id}", session["id"])
    if "/nodes/{name}" in path:
        return path.replace("{name}", "node-1")
    path = path.replace("{user_id}", bob_id)
    if name in {"members_put", "members_remove"}:
        path = path.replace("{user}", "bob")
    if name in {"jobs_delete", "jobs_resume", "checkpoints_delete"}:
        job_id = ended(stage)
        path = path.replace("{job_id}", job_id)
        path = path.replace("{checkpoint_id}", f"{job_id}.a1.step-8")
    if name in {"members_create_token", "members_revoke_token"}:
        account = {"name": "hourly"}
        client.post(f"{API}/projects/{OURS}/service-accounts", json=account)
        path = path.replace("{user}", f"hourly@{OURS}")
    if name == "members_revoke_token":
        place = f"{API}/projects/{OURS}/service-accounts/hourly@{OURS}/tokens"
        path = path.replace("{token_id}", client.post(place, json={"name": "old"}).json()["id"])
    if name == "access_revoke":
        made = client.post(f"{API}/tokens", json={"name": "lost"}).json()
        path = path.replace("{token_id}", made["id"])
    return stage.path(path, "own") if "{" in path else path


def ended(stage: Stage) -> str:
    job_id = stage._job(OURS)
    stage._supervisors[job_id].end("succeeded")
    return job_id


def test_the_table_has_every_operation_that_is_not_safe() -> None:
    every = {found["operationId"] for method, _, found in operations() if method != "get"}
    # The page of the issuer sends the browser back by GET.
    assert every | {"access_end_issuer_login"} == {*CHANGES, *NOT_AUDITED}
    assert all(reason.endswith(".") for reason in NOT_AUDITED.values())


def test_a_server_with_an_operation_outside_the_table_does_not_start() -> None:
    router = APIRouter()

    @router.post("/boards", dependencies=[public])
    def boards() -> None: ...

    with pytest.raises(UndeclaredAuditError, match=r"boards\w* is not in the table"):
        audits_of([*factory._routes(), *router.routes])
    with pytest.raises(UndeclaredAuditError, match="no operation is named"):
        audits_of(router.routes[:0])


def test_a_change_without_its_row_is_not_stored(
    admin: TestClient, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row and change are one transaction: if the row cannot be stored, nothing is."""

    def fail(*_: object) -> None:
        raise RuntimeError("no row")

    path = "server.core.audit.request_rows.AuditedRequest.before_commit"
    with monkeypatch.context() as patch:
        patch.setattr(path, fail)
        assert admin.post(f"{API}/projects", json={"name": "vision"}).status_code == 500
    assert admin.get(f"{API}/projects/vision").status_code == 404


def test_a_refused_change_has_no_row_of_a_change(admin: TestClient, context: Context) -> None:
    assert admin.post(f"{API}/projects", json={"name": "vision"}).status_code == 201
    emptied(context)
    assert admin.post(f"{API}/projects", json={"name": "vision"}).status_code == 409
    assert [row for row in waiting(context) if row["outcome"] == "changed"] == []

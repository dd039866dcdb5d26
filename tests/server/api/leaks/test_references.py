"""Pages, packs, imports and keys of people who do not see a job: each works without it."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select

from server.core.context import Context
from server.core.people.user_tables import users
from server.jobs.packs.store import PackUpload
from tests.actors import ADMIN
from tests.server.api.conftest import BASE_URL
from tests.server.api.in_process import TestClient
from tests.server.api.leaks.hidden_jobs import digest_of
from tests.server.harness import BRINGS_CODE, Harness
from tests.server.members import OURS, THEIRS, add_projects, add_user, set_role

API = "/api/v1"


@pytest.fixture
def ada(app: FastAPI, context: Context) -> TestClient:
    add_projects(context)
    token = add_user(context, "ada", {OURS: "member"})
    return TestClient(app, base_url=BASE_URL, headers={"authorization": f"Bearer {token}"})


def test_the_pages_of_the_queue_show_no_key_of_a_hidden_job(
    ada: TestClient, harness: Harness
) -> None:
    ids = [harness.submit(project=project, name=project) for project in (THEIRS, OURS) * 3]
    harness.place()
    seen: list[dict[str, Any]] = []
    token: str | None = None
    while len(seen) < len(ids):
        query = {"page_size": 1} | ({} if token is None else {"page_token": token})
        page = ada.get(f"{API}/queue", params=query).json()
        seen += page["items"]
        token = page["next_page_token"]
        if token is not None:
            text = base64.urlsafe_b64decode(token + "==").decode()
            assert not [each for each in ids[::2] if each in text]
    assert token is None
    assert [each["position"] for each in seen] == [1, 2, 3, 4, 5, 6]
    hidden = [each for each in seen if each["job_id"] is None]
    assert {each["name"] for each in hidden} == {"another project's job"}
    assert {each["job_id"] for each in seen} - {None} == {*ids[1::2]}
    empty = ("project", "priority", "queued_at", "reason", "expected_start_at", "lasts_seconds")
    assert [each[name] for each in hidden for name in empty] == [None] * 3 * len(empty)
    refused = ada.get(f"{API}/queue", params={"page_token": forged()})
    assert refused.status_code == 422


def forged() -> str:
    text = f'["queue","gAAAA{"x" * 100}"]'
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


@BRINGS_CODE
def test_a_pack_that_others_have_is_uploaded_again(ada: TestClient, context: Context) -> None:
    content, spec = b"code", {"project": OURS, "program": {"command": ["x.py"]}}
    digest = digest_of(content)
    upload = PackUpload(context, actor=ADMIN)
    upload.add(content)
    upload.finish(digest)
    spec["program"] = {"command": ["x.py"], "code": {"pack": digest}}
    assert ada.get(f"{API}/packs/{digest}").status_code == 404
    assert ada.post(f"{API}/jobs", json=spec).status_code == 422
    headers = {"content-type": "application/gzip"}
    again = ada.post(f"{API}/packs", params={"digest": digest}, content=content, headers=headers)
    assert again.status_code == 201, again.text
    assert ada.get(f"{API}/packs/{digest}").status_code == 200
    assert ada.post(f"{API}/jobs", json=spec).status_code == 201


@BRINGS_CODE
def test_a_pack_of_a_visible_job_is_usable(
    ada: TestClient, context: Context, harness: Harness
) -> None:
    upload = PackUpload(context, actor=ADMIN)
    upload.add(b"code")
    digest = upload.finish(digest_of(b"code")).digest
    program = {"command": ["x.py"], "code": {"pack": digest}}
    assert ada.get(f"{API}/packs/{digest}").status_code == 404
    harness.submit(project=OURS, program=program)
    assert ada.get(f"{API}/packs/{digest}").status_code == 200


def imported(client: TestClient, project: str) -> Any:
    body = {
        "run": {"tool": "wandb", "run_id": "x", "digest": digest_of(b"run"), "points": 0},
        "name": "run",
        "project": project,
        "state": "succeeded",
        "start_time": 1.7e9,
        "seconds": 1.0,
        "last_step": 1,
    }
    return client.post(f"{API}/imports", json=body)


def test_the_same_run_is_imported_once_in_each_project(ada: TestClient, client: TestClient) -> None:
    theirs, ours = imported(client, THEIRS).json(), imported(ada, OURS).json()
    assert theirs["job_id"] != ours["job_id"]
    assert imported(ada, OURS).json()["job_id"] == ours["job_id"]
    assert imported(client, THEIRS).json()["job_id"] == theirs["job_id"]
    assert imported(ada, THEIRS).status_code == 422


def test_a_key_returns_no_job_after_the_role_was_lost(
    app: FastAPI, context: Context, ada: TestClient
) -> None:
    keyed = {"idempotency-key": "k"}
    made = ada.post(f"{API}/jobs", json={"project": OURS}, headers=keyed)
    again = ada.post(f"{API}/jobs", json={"project": OURS}, headers=keyed)
    assert again.json()["id"] == made.json()["id"]
    with context.database.read() as connection:
        user_id = connection.scalar(select(users.c.id).where(users.c.name == "ada"))
    set_role(context, str(user_id), THEIRS, "member")
    set_role(context, str(user_id), OURS, None)
    hidden = ada.post(f"{API}/jobs", json={"project": OURS}, headers=keyed)
    unknown = ada.post(f"{API}/jobs", json={"project": "unknown"})
    assert (hidden.status_code, unknown.status_code) == (422, 422)
    assert hidden.json()["detail"] == unknown.json()["detail"].replace("unknown", OURS)

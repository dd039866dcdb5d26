"""Pages, packs, imports and keys of people who do not see a job: each works without it."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select, update

from server.api.http.paging import encode
from server.core.context import Context
from server.core.database.scheduler_tables import projects
from server.core.people.user_tables import users
from server.jobs.checkpoints.guards import protected
from server.jobs.jobs.fork import fork
from server.jobs.jobs.service import stop
from server.jobs.packs.store import PackUpload
from server.jobs.queue.order import QueueKey
from tests.actors import ADMIN
from tests.server.api.conftest import BASE_URL
from tests.server.api.in_process import TestClient
from tests.server.api.leaks.hidden_jobs import digest_of
from tests.server.harness import BRINGS_CODE, Harness
from tests.server.members import OURS, THEIRS, add_projects, add_user, set_role
from trainyard.protocol.rest.checkpoints import ForkRequest
from trainyard.protocol.states import AttemptOutcome

API = "/api/v1"
IS_DEFAULT = projects.c.name == "default"


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
    refused = ada.get(f"{API}/queue", params={"page_token": encode("queue", f"gAAAA{'x' * 100}")})
    assert refused.status_code == 422


def test_no_key_of_the_queue_can_be_chosen(
    app: FastAPI, context: Context, ada: TestClient, client: TestClient, harness: Harness
) -> None:
    """A key of the caller's choice would find priority, time and id of hidden jobs by halving."""
    for project in (THEIRS, OURS, OURS):
        harness.submit(project=project)
    chosen = QueueKey(0, 0.0, context.now(), "0" * 26).token
    refused = ada.get(f"{API}/queue", params={"page_token": encode("queue", chosen)})
    assert refused.status_code == 422, refused.text
    other = encode("queue", context.secrets.seal_text(chosen, purpose="another purpose"))
    assert ada.get(f"{API}/queue", params={"page_token": other}).status_code == 422
    assert client.get(f"{API}/queue", params={"page_token": encode("queue", chosen)}).is_success
    given = ada.get(f"{API}/queue", params={"page_size": 1}).json()["next_page_token"]
    bob = add_user(context, "bob", {OURS: "member"})
    his = TestClient(app, base_url=BASE_URL, headers={"authorization": f"Bearer {bob}"})
    assert ada.get(f"{API}/queue", params={"page_token": given}).is_success
    assert his.get(f"{API}/queue", params={"page_token": given}).status_code == 422


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


@pytest.mark.parametrize("end", ["a1/step-8/hugging_face", "corpus"])
def test_no_spec_names_the_folder_of_a_hidden_job(
    ada: TestClient, client: TestClient, harness: Harness, end: str
) -> None:
    """The files of a job have no permission of their own: its node reads what the spec names."""
    hidden, own = harness.submit(project=THEIRS), harness.submit(project=OURS)
    for field, changes in (
        ("/model/initial_weights", {"model": {"initial_weights": f"checkpoints:{hidden}/{end}"}}),
        ("/data/path", {"data": {"path": f"checkpoints:exports/{hidden}.a1.step-8-float32/{end}"}}),
    ):
        for call in ("jobs", "jobs/plan", "queue/what-if"):
            refused = ada.post(f"{API}/{call}", json={"project": OURS} | changes)
            assert refused.status_code == 422, refused.text
            pointers = [each["pointer"] for each in refused.json()["errors"]]
            assert pointers == [field], refused.text
    for by, job_id in ((ada, own), (client, hidden)):
        model = {"initial_weights": f"checkpoints:{job_id}/{end}"}
        allowed = by.post(f"{API}/queue/what-if", json={"project": OURS, "model": model})
        assert "the id of no job" not in allowed.text


def test_an_ended_fork_of_others_forbids_no_deletion(
    context: Context, app: FastAPI, harness: Harness
) -> None:
    add_projects(context)
    token = add_user(context, "mia", {OURS: "maintainer"})
    mia = TestClient(app, base_url=BASE_URL, headers={"authorization": f"Bearer {token}"})
    harness.add_node("node-1", slots=1)
    job_id, (supervisor,) = harness.running(project=OURS, step=8)
    origin = harness.commit_checkpoint(job_id, 8)
    request = ForkRequest(name="hidden", changes={"project": THEIRS})
    _, forked = fork(context, origin, request, actor=ADMIN)
    stop(context, job_id, actor=ADMIN, reason="")
    supervisor.end(AttemptOutcome.STOPPED)
    refused = mia.delete(f"{API}/jobs/{job_id}")
    assert "another project's job was forked" in refused.json()["detail"]
    with context.database.read() as connection:
        assert protected(connection, [origin]) == {origin}
    stop(context, forked, actor=ADMIN, reason="")
    with context.database.read() as connection:
        assert protected(connection, [origin]) == set()
    assert mia.delete(f"{API}/jobs/{job_id}").is_success


def imported(client: TestClient, project: str, digest: str = digest_of(b"run")) -> Any:
    body = {
        "run": {"tool": "wandb", "run_id": "x", "digest": digest, "points": 0},
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


def test_a_forged_digest_meets_no_import_of_another_project(
    context: Context, ada: TestClient, client: TestClient
) -> None:
    """Each project has its own digests, also the project `default`."""
    with context.database.write() as connection:
        connection.execute(update(projects).where(IS_DEFAULT).values(everyone="member"))
    assert imported(client, THEIRS).status_code == 201
    stored = hashlib.sha256(f"{THEIRS} {digest_of(b'run')}".encode()).hexdigest()
    for digest in (f"sha256:{stored}", digest_of(b"run")):
        forged = imported(ada, "default", digest)
        assert forged.status_code == 201, forged.text
        again = imported(client, "default", digest)
        assert again.json()["job_id"] == forged.json()["job_id"]
    assert imported(client, THEIRS).status_code == 201


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

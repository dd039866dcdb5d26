"""The transfer of a job: by a maintainer, to a user who may submit jobs in its project."""

from __future__ import annotations

import pytest
from fastapi import FastAPI

from server.core.context import Context
from server.core.errors import ForbiddenError
from server.jobs.shells.service import open_shell
from tests.actors import ADA, authenticate_token
from tests.server.api.conftest import BASE_URL, admin, admin_token, app  # noqa: F401
from tests.server.api.in_process import TestClient
from tests.server.harness import BRINGS_CODE, Harness
from tests.server.members import OURS, add_projects, add_user
from trainyard.protocol.shell_sessions.views import ShellRequest

API = "/api/v1"
LS = ShellRequest(argv=("ls",))


@pytest.fixture
def maintainer(app: FastAPI, context: Context) -> TestClient:  # noqa: F811 - the fixture above
    add_projects(context)
    token = add_user(context, "eve", {OURS: "maintainer"})
    return TestClient(app, base_url=BASE_URL, headers={"authorization": f"Bearer {token}"})


@BRINGS_CODE
def test_a_job_gets_another_owner(
    maintainer: TestClient, context: Context, harness: Harness
) -> None:
    bob = authenticate_token(context, add_user(context, "bob", {OURS: "member"})).actor
    harness.add_node()
    job_id, _ = harness.running(project=OURS)
    former = open_shell(context, job_id, LS, actor=ADA)
    with pytest.raises(ForbiddenError):
        open_shell(context, job_id, LS, actor=bob)
    given = maintainer.post(f"{API}/jobs/{job_id}/owner", json={"owner": "bob"})
    assert (given.status_code, given.json()["owner"]) == (200, "bob")
    assert open_shell(context, job_id, LS, actor=bob).id != former.id
    with pytest.raises(ForbiddenError):
        open_shell(context, job_id, LS, actor=ADA)
    again = maintainer.post(f"{API}/jobs/{job_id}/owner", json={"owner": "bob"})
    assert again.status_code == 200
    kinds = [each for each in harness.kinds(job_id) if each == "owner_changed"]
    assert len(kinds) == 1


@pytest.mark.parametrize("role", ["viewer", None])
def test_the_new_owner_must_be_a_member(
    maintainer: TestClient, context: Context, harness: Harness, role: str | None
) -> None:
    add_user(context, "bob", {} if role is None else {OURS: role})
    job_id = harness.submit(project=OURS)
    before = harness.dump()
    for name in ("bob", "nobody"):
        refused = maintainer.post(f"{API}/jobs/{job_id}/owner", json={"owner": name})
        assert refused.status_code == 422
        assert f"/owner: '{name}' is no active user" in refused.json()["detail"]
    assert harness.dump() == before

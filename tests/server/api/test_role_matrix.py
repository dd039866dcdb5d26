"""Every operation on an object of a project, with every role: past, 403 or 404, by the table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import insert, select, update

from server.api.auth.permissions import (
    MEANINGS,
    PROJECT_PERMISSIONS,
    Roles,
    held_by_role,
    scope_of,
)
from server.core.context import Context
from server.core.database.metric_and_log_tables import shells
from server.core.database.tables import jobs
from server.core.database.tables import operations as operation_rows
from server.core.people.user_tables import users
from server.jobs.jobs.service import delete
from tests.actors import ADMIN
from tests.server.api.conftest import BASE_URL
from tests.server.api.in_process import TestClient
from tests.server.api.published import DOCUMENT
from tests.server.harness import Harness, Supervisor
from tests.server.members import OURS, THEIRS, add_projects, add_user
from trainyard.protocol.operations import OperationTask
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.projects import ProjectRole
from trainyard.protocol.user_accounts.views import ClusterRole, UserKind

SPARE = "spare"
"""A third project: a maintainer there passes each check that names no project."""
NO_ID = "0" * 26
QUERY = {"text": "x", "interval_steps": 5}
"""Required query parameters."""
MISSING = re.compile(r"no (job|checkpoint|operation|project|command) has the")


@dataclass(frozen=True)
class Kind:
    """A kind of user."""

    in_ours: ProjectRole | None = None
    in_spare: ProjectRole | None = None
    cluster: ClusterRole = ClusterRole.USER
    kind: UserKind = UserKind.PERSON

    @property
    def roles(self) -> Roles:
        """The roles by project."""
        given = {OURS: self.in_ours, SPARE: self.in_spare}
        return Roles(self.cluster, tuple((n, role) for n, role in given.items() if role))


KINDS: Mapping[str, Kind] = {
    "none": Kind(),
    "viewer": Kind(ProjectRole.VIEWER),
    "member": Kind(ProjectRole.MEMBER),
    "maintainer": Kind(ProjectRole.MAINTAINER),
    "operator": Kind(cluster=ClusterRole.OPERATOR),
    "admin": Kind(cluster=ClusterRole.ADMIN),
    "service": Kind(ProjectRole.MEMBER, kind=UserKind.SERVICE),
    "viewer here": Kind(ProjectRole.VIEWER, ProjectRole.MAINTAINER),
    "elsewhere": Kind(None, ProjectRole.MAINTAINER),
}


@dataclass(frozen=True)
class Asked:
    """An operation on an object of a project."""

    method: str
    path: str
    permission: Permission
    body: Any = None
    query: Mapping[str, Any] = field(default_factory=dict)


def asked() -> Iterator[Asked]:
    for path, methods in DOCUMENT["paths"].items():
        ids = set(re.findall(r"\{(\w+)\}", path))
        of_project = path.startswith("/api/v1/projects/{name}")
        if not (ids & {"job_id", "checkpoint_id", "operation_id"} or of_project):
            continue
        for method, found in methods.items():
            if found["x-permission"] in [each.value for each in PROJECT_PERMISSIONS]:
                needed = [p for p in found.get("parameters", ()) if p.get("required")]
                query = {p["name"]: QUERY[p["name"]] for p in needed if p["in"] == "query"}
                permission = Permission(found["x-permission"])
                yield Asked(method, path, permission, example(found), query)


def example(found: Mapping[str, Any]) -> Any:
    """Return the first example of a body; None without a body."""
    content = found.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return None
    return next(iter(content["examples"].values()))["value"]


def predicted(kind: Kind, permission: Permission, where: str) -> str:
    """Return `past`, `403` or `404`, from the table of permissions alone."""
    if permission not in scope_of(kind.roles).anywhere:
        return "403"
    if where == "missing":
        return "404"
    if kind.cluster is ClusterRole.ADMIN:
        return "past"
    role = kind.in_ours if where == "own" else None
    in_project = held_by_role(role) if role else frozenset[Permission]()
    if kind.cluster is ClusterRole.OPERATOR:
        in_project |= {Permission.PROJECTS_READ}
    if permission in in_project:
        return "past"
    return "403" if role else "404"


@dataclass
class Stage:
    """Objects of projects."""

    context: Context
    harness: Harness
    _kept: dict[str, str] = field(default_factory=dict)
    user_id: str = ""
    """Owner of the jobs: only the owner runs commands in them."""
    _supervisors: dict[str, Supervisor] = field(default_factory=dict)

    def path(self, template: str, where: str) -> str:
        """Return a path with ids of new objects in `ours`, in `theirs`, or of deleted ones."""
        for name, value in self._ids(where).items():
            template = template.replace(name, value)
        return re.sub(r"\{\w+\}", NO_ID, template)

    def fixed(self, template: str, where: str) -> str:
        """Return a path as `path` does, with the same ids for each operation."""
        ids = self._kept or self._ids(where)
        self._kept = ids
        for name, value in ids.items():
            template = template.replace(name, value)
        return re.sub(r"\{\w+\}", NO_ID, template)

    def _ids(self, where: str) -> dict[str, str]:
        job_id = self._job(THEIRS if where == "other" else OURS)
        ids = {
            "{job_id}": job_id,
            "{checkpoint_id}": f"{job_id}.a1.step-8",
            "{operation_id}": self._operation(job_id, THEIRS if where == "other" else OURS),
            "{name}": {"own": OURS, "other": THEIRS}.get(where, "unknown"),
            "{shell_id}": self._shell(self._supervisors[job_id]),
            "{user}": "nightly@ours",
        }
        if where == "missing":
            self._supervisors[job_id].end("succeeded")
            delete(self.context, job_id, actor=ADMIN, checkpoints="keep")
            ids["{operation_id}"] = NO_ID
        return ids

    def _job(self, project: str) -> str:
        job_id = self.harness.submit(project=project)
        self.harness.place()
        (supervisor,) = self.harness.claim_all(job_id)
        supervisor.train(1)
        self._supervisors[job_id] = supervisor
        own = update(jobs).where(jobs.c.id == job_id).values(owner_id=self.user_id)
        with self.context.database.write() as connection:
            connection.execute(own)
        self.harness.commit_checkpoint(job_id, 8)
        return job_id

    def _shell(self, supervisor: Supervisor) -> str:
        shell_id, now = self.context.new_id(), self.context.now()
        row = {
            "id": shell_id,
            "attempt_id": supervisor.attempt_id,
            "node": supervisor.node,
            "argv": ["ls"],
            "seconds": 60.0,
            "created_by": "ada",
            "user_id": self.user_id,
            "created_at": now,
            "client_at": now,
        }
        with self.context.database.write() as connection:
            connection.execute(insert(shells).values(row))
        return shell_id

    def _operation(self, job_id: str, project: str) -> str:
        operation_id = self.context.new_id()
        task = OperationTask.model_validate(
            {"kind": "verify", "job_id": job_id, "root": "local", "paths": ["x"]}
        )
        row = {
            "id": operation_id,
            "kind": "verify",
            "state": "queued",
            "job_id": job_id,
            "job_name": "tiny",
            "project": project,
            "actor": "ada",
            "reason": "",
            "task": task,
            "created_at": self.context.now(),
        }
        with self.context.database.write() as connection:
            connection.execute(insert(operation_rows).values(row))
        return operation_id


@pytest.fixture
def stage(context: Context, harness: Harness) -> Stage:
    add_projects(context, OURS, THEIRS, SPARE)
    harness.add_node(slots=100)
    return Stage(context, harness)


@pytest.mark.parametrize("where", ["own", "other", "missing"])
@pytest.mark.parametrize("name", KINDS)
def test_every_operation_answers_by_the_role(
    app: FastAPI, stage: Stage, name: str, where: str
) -> None:
    kind = KINDS[name]
    token = add_user(
        stage.context,
        "ada",
        dict(kind.roles.in_projects),
        cluster=kind.cluster,
        kind=kind.kind,
        project=OURS if kind.kind is UserKind.SERVICE else None,
    )
    stage.user_id = user_id_of(stage.context, "ada")
    client = TestClient(app, base_url=BASE_URL, headers={"authorization": f"Bearer {token}"})
    wrong = []
    for each in asked():
        expected = predicted(kind, each.permission, where)
        # An operation may change its objects, unless it is refused.
        path = stage.path if expected == "past" else stage.fixed
        given = {"json": each.body, "params": dict(each.query)}
        reply = client.request(each.method, path(each.path, where), **given)
        if (found := answer(reply)) != expected:
            wrong.append((each.method, each.path, found, expected, reply.text[:200]))
    assert wrong == []


def user_id_of(context: Context, name: str) -> str:
    with context.database.read() as connection:
        return str(connection.scalar(select(users.c.id).where(users.c.name == name)))


def answer(reply: Any) -> str:
    if reply.status_code in (401, 403):
        return str(reply.status_code)
    if reply.status_code == 404 and MISSING.search(reply.json()["detail"]):
        return "404"
    return "past" if reply.status_code < 500 else str(reply.status_code)


def test_the_matrix_has_every_permission_of_a_project() -> None:
    found = [*asked()]
    assert len(found) > 40
    without_object = {Permission.CODE_RUN}  # an upload of a pack names no project
    assert {each.permission for each in found} == PROJECT_PERMISSIONS - without_object
    assert {MEANINGS[each].about for each in PROJECT_PERMISSIONS} == {"project"}

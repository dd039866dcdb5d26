"""A server with two projects and a person in each role, for tests of pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from server.cluster.projects.service import create_project
from server.core.subject import Actor
from server.core.visibility.scope import SYSTEM_SCOPE
from tests.web.actors import Run, Stage, open_context
from tests.web.people import Group
from tests.web.theatre import served
from trainyard.protocol.rest.projects import ProjectRequest

VISION = {"vera": "viewer", "mel": "member", "max": "maintainer"}
"""Roles in the project `vision`."""
IN_CLUSTER = {"otto": "operator", "root": "admin", "nora": "user"}
"""Users without a role in a project, and their roles in the cluster."""


@contextmanager
def teamed(folder: Path) -> Iterator[Group]:
    """Serve the projects `vision` and `speech`, their jobs and people, until the block ends."""
    context = open_context(folder)
    stage = Stage.open(context, at=datetime.now(UTC) - timedelta(minutes=20))
    for node in ("gpu-01", "gpu-02"):
        stage.join(node, slots=4, device_name="NVIDIA H200", gib=140)
    system = Actor("admin", scope=SYSTEM_SCOPE)
    for name, description in (("vision", "Image models of the lab"), ("speech", "")):
        request = ProjectRequest(name=name, description=description, max_slots=16)
        create_project(context, request, actor=system)
    jobs = _play(stage)
    with served(context, folder) as server:
        group = Group(server.url, server.token, server.admin_token, jobs)
        for name in VISION:
            group.join(name)
        for name, role in IN_CLUSTER.items():
            group.join(name, role=role)
        with group.admin() as admin:
            admin.put("/projects/default/everyone", json={"role": None}).raise_for_status()
            for name, role in VISION.items():
                path = f"/projects/vision/members/{name}"
                admin.put(path, json={"role": role}).raise_for_status()
            account = {"name": "nightly", "role": "member"}
            path = "/projects/vision/service-accounts"
            admin.post(path, json=account).raise_for_status()
            path = "/projects/vision/service-accounts/nightly@vision/tokens"
            admin.post(path, json={"name": "ci"}).raise_for_status()
            for name in ("resnet", "resnet-next"):
                path = f"/jobs/{jobs[name]}/owner"
                admin.post(path, json={"owner": "mel"}).raise_for_status()
        yield group


def _play(stage: Stage) -> dict[str, str]:
    """Start a job in each project, and let another one of each wait; return their ids by name."""
    jobs = {}
    for project, name in (("vision", "resnet"), ("speech", "whisper")):
        jobs[name] = _submit(stage, name, project=project, slots=4)
        run: Run = stage.start(jobs[name])
        run.train(60, seconds_per_step=0.5, save_every=20)
    for project, name in (("speech", "whisper-next"), ("vision", "resnet-next")):
        jobs[name] = _submit(stage, name, project=project, slots=4)
    stage.place()
    return jobs


def _submit(stage: Stage, name: str, *, project: str, slots: int) -> str:
    return stage.submit(
        name=name,
        project=project,
        training={"steps": 2000},
        checkpoint={"keep_latest_k": 0},
        resources={"world_size": slots},
    )

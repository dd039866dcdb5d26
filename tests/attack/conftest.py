"""Control planes and nodes that are attacked, and the persons who attack them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import yard
from tests.e2e.control_plane import TEXT, ControlPlane, finished, wait_for
from tests.e2e.workers import Worker, drained_plane, joined_node
from tests.other_users import entering_namespace, open_folder, packages, python_in
from trainyard.client.errors import TrainyardError
from trainyard.client.sdk import Client
from trainyard.protocol.rest.jobs import JobView

__all__ = ["plane", "yard"]
FIRST, OUTSIDE = 62_200, 7_000_000
"""First user id of ranks, and the id of the machine that is 0 in the namespace."""
SLOTS = 4
RUN_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Level:
    """A node of some isolation; no other one takes work."""

    isolation: str
    worker: Worker
    yard: Client
    plane: ControlPlane
    """Its control plane, whose own node is drained."""

    def run(self, name: str, script: str, **env: str) -> JobView:
        """Run a shell script as a program to its end."""
        return finished(self.yard, self.yard.submit(script_job(name, script, **env)).id)

    def run_directory(self, job_id: str) -> Path:
        """Return the run directory of the first attempt, once it is there."""
        path = self.worker.data / "runs" / job_id / "1"
        wait_for((path / "launch.json").exists, f"launch of {job_id}")
        return path


def script_job(name: str, script: str, **env: str) -> dict[str, Any]:
    """Return the spec of a program of one slot that is a shell script."""
    return {
        "name": name,
        "program": {"command": ["sh", "-c", script], "launcher": "command"},
        "retry": {"backoff_seconds": 0},
        "resources": {"world_size": 1, "device": "cpu"},
        "env": env,
    }


@contextlib.contextmanager
def person(admin: Client, name: str) -> Iterator[Client]:
    """Connect with a new token of a person, which ends with the block."""
    token = admin.create_token(name)
    assert token.secret is not None
    with Client(admin.url, token.secret) as connection:
        yield connection
    with contextlib.suppress(TrainyardError):  # a test has revoked it
        admin.revoke_token(token.id)


def in_shell(who: Client, job_id: str, script: str) -> str:
    """Run a script of a person in the attempt of a job to its end; return what it printed."""
    shell = who.open_shell(job_id, ["sh", "-c", script])
    content = b""
    while True:
        found = who.shell_output(job_id, shell.id, start=len(content))
        content += found.content
        if not found.content and found.shell.ended_at is not None:
            assert found.shell.failure is None, found.shell.failure
            return content.decode()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that runs no code of jobs."""
    made = ControlPlane(tmp_path_factory.mktemp("attack"), TRAINYARD_ALLOW_CODE="false")
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(scope="package")
def careless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that takes programs, and whose own node is drained."""
    with drained_plane(tmp_path_factory.mktemp("programs")) as made:
        yield made


@pytest.fixture(scope="module")
def level(careless: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Level]:
    """A node of the isolation that the parameter names."""
    with open_folder() as folder, careless.connect() as yard:
        for name in ("checkpoints", "data", "python"):
            (folder / name).mkdir()
        (folder / "data" / "text.txt").write_text(TEXT)
        environment = {
            "TRAINYARD_ROOTS": f"checkpoints={folder / 'checkpoints'},data={folder / 'data'}",
            "TRAINYARD_RUN_BYTES": str(RUN_BYTES),
            "PYTHONPATH": packages(),
        }
        if request.param != "none":
            environment["TRAINYARD_RUN_AS"] = f"nobody:{FIRST}-{SLOTS + 1}"
        # The name of the node is that of its folder.
        data = folder / f"{request.param}-{request.module.__name__.rpartition('_')[2]}"
        python = python_in(folder / "python")
        if request.param == "namespace":
            own = (data, folder / "checkpoints", folder / "data")
            python = entering_namespace(python, first=OUTSIDE, folders=own)
        with joined_node(careless, yard, data, python=python, **environment) as worker:
            node = next(node for node in yard.nodes() if node.name == worker.name)
            assert node.hardware.isolation == request.param
            yield Level(request.param, worker, yard, careless)

        def is_offline() -> bool:
            return all(not node.online for node in yard.nodes() if node.name == worker.name)

        # Until then it would get jobs of the next level, which no worker claims.
        wait_for(is_offline, f"end of node {worker.name}")

"""A node that runs code of jobs, with a folder of wheels instead of the network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.wheels import make_wheel, variables
from tests.worker.conftest import NODE, Attempt, Place, wait_for
from tests.worker.fake_server import NODE_TOKEN, FakeOperation, FakeServer
from tests.worker.launchers.process_launcher import PROGRAM
from trainyard.base.ids import make_id
from trainyard.protocol.operations import (
    BuildTask,
    OperationKind,
    OperationOutcome,
    OperationTask,
)
from trainyard.protocol.worker_messages import OperationClaimReply, OperationMessage
from trainyard.run.atomic import replace_file
from trainyard.run.failures import Failure
from worker.api import WorkerApi
from worker.environments.environment_store import EnvironmentStore
from worker.operations import start_operation

SHOW = """
import sys, yardsticks
print("length", yardsticks.LENGTH, "in", sys.prefix, flush=True)
"""


@dataclass
class Site:
    """The node, its folder of code and its folder of wheels."""

    place: Place
    api: WorkerApi
    code: Path
    links: Path
    digest: str
    """SHA-256 of the wheel."""

    @property
    def store(self) -> EnvironmentStore:
        """The environments of the root of the checkpoints."""
        return EnvironmentStore(Path(self.place.local.roots["checkpoints"]))

    def launch(self, lock: str, **environment: Any) -> Attempt:
        """Start a program with the packages of a lock."""
        (self.code / "train.py").write_text(SHOW)
        program = {
            "command": ["train.py"],
            "launcher": "command",
            "code": {"folder": "data:mine"},
            "environment": {"lock": lock, **environment},
        }
        return self.place.start(launcher=PROGRAM, ranks=1, program=program)

    def failure(self, lock: str, **environment: Any) -> Failure:
        """Return the failure of a launch with the packages of a lock."""
        failure = self.launch(lock, **environment).exit().failure
        assert failure is not None
        return failure

    def give(self, digest: str) -> str:
        """Make the server send the build to this node; return the operation's id."""
        server, operation_id = self.place.server, make_id(milliseconds=1, entropy=os.urandom(10))
        task = OperationTask(
            kind=OperationKind.BUILD,
            job_id="job1",
            root="checkpoints",
            paths=(),
            build=BuildTask(digest=digest),
        )
        claim = OperationClaimReply(task=task, storage=None, fence=1, report_seconds=0.05)
        server.operations[operation_id] = FakeOperation(claim)
        message = OperationMessage(operation_id=operation_id, node=NODE)
        start_operation(self.place.local, message, self.api)
        return operation_id

    def build(self, digest: str) -> OperationOutcome:
        """Build an environment by the real command; return the outcome."""
        operation_id = self.give(digest)
        seen = self.place.server.operations[operation_id]
        return wait_for(lambda: seen.outcome, "outcome of the build")

    def away(self) -> None:
        """Remove the wheels, so that nothing can be fetched."""
        shutil.rmtree(self.links)


@pytest.fixture
def site(
    place: Place, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    replace_file(place.node.token, NODE_TOKEN)
    place.local = replace(place.local, allow_code=True)
    code = Path(place.local.roots["data"], "mine")
    code.mkdir()
    digest = make_wheel(tmp_path / "links")
    for name, value in variables(tmp_path / "links").items():
        monkeypatch.setenv(name, value)
    with WorkerApi(server.url, NODE_TOKEN) as api:
        yield Site(place, api, code, tmp_path / "links", digest)


Touch = Callable[[Path, float], None]


def set_used(path: Path, at: float) -> None:
    """Set the last use of an environment."""
    os.utime(path, (at, at))

"""Programs with the packages of a lock on a whole control plane: built once, used offline."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.control_plane import ControlPlane, finished, wait_for
from tests.wheels import make_wheel, requirements, variables
from trainyard.client.sdk import Client
from trainyard.protocol.operations import OperationKind
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.states import JobState, OperationState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels instead of a network."""
    return tmp_path_factory.mktemp("links")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory, links: Path) -> Iterator[ControlPlane]:
    uv: dict[str, Any] = {**variables(links)}
    made = ControlPlane(tmp_path_factory.mktemp("environments"), **uv)
    try:
        yield made
    finally:
        made.end()


def job(plane: ControlPlane, yard: Client, lock: str) -> JobView:
    """Submit a program of one slot with this lock."""
    code = plane.folders.data / f"code-{abs(hash(lock))}"
    code.mkdir(exist_ok=True)
    (code / "requirements.txt").write_text(lock)
    (code / "train.py").write_text("import yardsticks\nprint('length', yardsticks.LENGTH)\n")
    spec: dict[str, Any] = {
        "name": "packages",
        "program": {
            "command": ["train.py"],
            "launcher": "command",
            "code": {"folder": f"data:{code.name}"},
            "environment": {"lock": "requirements.txt"},
        },
        "resources": {"world_size": 1},
    }
    return yard.submit(spec)


def builds(yard: Client) -> list[OperationState]:
    return [o.state for o in yard.operations() if o.kind == OperationKind.BUILD]


def test_two_jobs_build_once_and_a_third_needs_no_network(
    plane: ControlPlane, yard: Client, links: Path
) -> None:
    lock = requirements(make_wheel(links))
    first, second = job(plane, yard, lock), job(plane, yard, lock)
    for submitted in (first, second):
        ended = finished(yard, submitted.id)
        assert ended.state == JobState.SUCCEEDED, ended.reason
    environments = plane.folders.checkpoints / "environments"
    (built,) = [path for path in environments.iterdir() if path.name != "requests"]
    began = built.stat().st_ino
    count = len(builds(yard))
    assert set(builds(yard)) == {OperationState.SUCCEEDED}
    assert len([o for o in yard.operations() if "were installed" in _message(o)]) == 1
    shutil.rmtree(links)
    third = finished(yard, job(plane, yard, lock).id)
    assert (third.state, third.attempt) == (JobState.SUCCEEDED, 1)
    assert len(builds(yard)) == count
    assert built.stat().st_ino == began


def test_a_broken_lock_fails_with_the_last_lines(
    plane: ControlPlane, yard: Client, links: Path
) -> None:
    make_wheel(links)
    ended = finished(yard, job(plane, yard, requirements("0" * 64)).id)
    assert ended.state == JobState.FAILED
    assert ended.reason is not None
    assert ended.reason.startswith("launch_error: build the environment of packages failed")
    assert "Hash mismatch" in ended.reason
    wait_for(lambda: builds(yard), "the build")


def _message(operation: Any) -> str:
    return operation.outcome.message if operation.outcome is not None else ""

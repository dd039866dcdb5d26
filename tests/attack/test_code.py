"""A job tries to run a command on a node that runs no code of jobs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.control_plane import ControlPlane, finished, spec
from tests.e2e.workers import joined_node
from tests.exploits import BAD_VALUES, COUSINS, shell_by_warnings
from trainyard.client.errors import TrainyardError
from trainyard.client.sdk import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_the_server_refuses_the_exploit_and_each_of_its_cousins(
    yard: Client, tmp_path: Path
) -> None:
    touched = tmp_path / "touched"
    exploit = shell_by_warnings(f"touch {touched}")
    for env in (exploit, *({name: value} for name, value in (*COUSINS, *BAD_VALUES))):
        with pytest.raises(TrainyardError) as refusal:
            yard.submit({**spec("exploit"), "env": env})
        assert all(f"/env/{name}" in str(refusal.value) for name in env)
    assert list(yard.jobs()) == []
    assert not touched.exists()


def test_a_node_refuses_what_the_server_allows(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    touched = tmp_path / "touched"
    careless = ControlPlane(tmp_path_factory.mktemp("careless"), TRAINYARD_ALLOW_CODE="true")
    try:
        with careless.connect() as yard:
            yard.drain(careless.node)
            with joined_node(careless, yard, tmp_path / "strict", TRAINYARD_ALLOW_CODE="false"):
                env = shell_by_warnings(f"touch {touched}")
                job = finished(yard, yard.submit({**spec("allowed"), "env": env}).id)
                (attempt,) = yard.attempts(job.id)
    finally:
        careless.end()
    assert job.state == "failed"
    assert attempt.failure is not None
    assert attempt.failure.reason == "not_allowed"
    assert {"PYTHONWARNINGS", "BROWSER"} <= set(re.findall(r"[A-Z]+", attempt.failure.message))
    assert not touched.exists()


def test_what_a_server_once_accepted_starts_no_process(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The job is stored while code is allowed; it is placed when code no longer is."""
    root, touched = tmp_path_factory.mktemp("stored"), tmp_path / "touched"
    careless = ControlPlane(root, TRAINYARD_ALLOW_CODE="true")
    try:
        with careless.connect() as yard:
            yard.drain(careless.node)
            env = shell_by_warnings(f"touch {touched}")
            job_id = yard.submit({**spec("stored"), "env": env}).id
    finally:
        careless.end()
    careful = ControlPlane(root, TRAINYARD_ALLOW_CODE="false")
    try:
        with careful.connect() as yard:
            yard.undrain(careful.node)
            job = finished(yard, job_id)
            attempts = list(yard.attempts(job_id))
    finally:
        careful.end()
    assert (job.state, attempts) == ("failed", [])
    assert job.reason is not None
    assert job.reason.startswith("not_allowed: env.")
    assert {"PYTHONWARNINGS", "BROWSER"} <= set(re.findall(r"[A-Z]+", job.reason))
    assert not touched.exists()

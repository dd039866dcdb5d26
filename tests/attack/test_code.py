"""A job tries to run a command on a node that runs no code of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.errors import TrainyardError
from client.sdk import Trainyard
from tests.e2e.control_plane import ControlPlane, finished, spec
from tests.exploits import BAD_VALUES, COUSINS, shell_by_warnings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_the_server_refuses_the_exploit_and_each_of_its_cousins(
    yard: Trainyard, tmp_path: Path
) -> None:
    touched = tmp_path / "touched"
    exploit = shell_by_warnings(f"touch {touched}")
    for env in (exploit, *({name: value} for name, value in (*COUSINS, *BAD_VALUES))):
        with pytest.raises(TrainyardError) as refusal:
            yard.submit({**spec("exploit"), "env": env})
        assert all(f"/env/{name}" in str(refusal.value) for name in env)
    assert list(yard.jobs()) == []
    assert not touched.exists()


def test_the_node_refuses_what_a_server_once_accepted(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The job is stored while code is allowed; its node takes it on when code no longer is."""
    root, touched = tmp_path_factory.mktemp("stored"), tmp_path / "touched"
    careless = ControlPlane(root, TRAINYARD_ALLOW_CODE="true")
    try:
        with careless.connect() as yard:
            yard.drain(next(yard.nodes()).name)
            env = shell_by_warnings(f"touch {touched}")
            job_id = yard.submit({**spec("stored"), "env": env}).id
    finally:
        careless.end()
    careful = ControlPlane(root, TRAINYARD_ALLOW_CODE="false")
    try:
        with careful.connect() as yard:
            yard.undrain(next(yard.nodes()).name)
            job = finished(yard, job_id)
            failure = list(yard.attempts(job_id))[-1].failure
    finally:
        careful.end()
    assert job.state == "failed"
    assert failure is not None
    assert "PYTHONWARNINGS" in failure.message
    assert "BROWSER" in failure.message
    assert not touched.exists()

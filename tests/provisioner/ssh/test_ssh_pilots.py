"""Pilots on machines behind a real sshd, with the real server: a job that causes its own node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.control_plane import finished
from tests.provisioner.site import OpenPlane, Site, paced, write_python
from tests.provisioner.ssh.machines import Lab, absence, lab_in
from tests.provisioner.thieves import assert_no_secret_is_shown
from trainyard.protocol.states import JobState, NodeRequestState

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(absence()), reason=absence()),
    pytest.mark.timeout(1200),
]
SOURCES = """
[[sources]]
name = "pool"
kind = "ssh"
slots = 2
device = "cpu"
python = "{python}"
url = "{url}"
idle_seconds = 5
limits = {{ nodes = 2 }}
worker = {{ allow_code = true }}
options = {{ hosts = ["gpu-[1-2]"], ssh = {ssh} }}
roots = {{ checkpoints = "{checkpoints}", data = "{data}" }}
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A jump host and two machines."""
    yield from lab_in(tmp_path)


@pytest.fixture
def site(lab: Lab, tmp_path: Path) -> Iterator[Site]:
    plane = OpenPlane(tmp_path, slots=1)
    try:
        with plane.connect() as yard:
            sources = SOURCES.format(
                python=write_python(tmp_path, addresses="to 10.90.0.0/21"),
                url=f"http://{lab.open_route()}:{yard.url.rpartition(':')[2]}",
                ssh=json.dumps(lab.ssh()),
                checkpoints=plane.folders.checkpoints,
                data=plane.folders.data,
            )
            made = Site(tmp_path, plane, yard, sources=sources, environment={})
            yield made
            made.close()
    finally:
        plane.end()


def test_a_queued_job_takes_a_machine_and_gives_it_back(site: Site, lab: Lab) -> None:
    wanted = paced(
        "over-ssh",
        seconds=0.02,
        training={"steps": 30},
        resources={"world_size": 2, "node_selector": {"source": "pool"}},
    )
    job_id = site.yard.submit(wanted).id
    (request,) = site.requests(count=1)
    assert request.caused_by == "over-ssh"
    assert finished(site.yard, job_id).state == JobState.SUCCEEDED
    (attempt,) = site.yard.attempts(job_id)
    assert [node.node for node in attempt.nodes] == [f"pool-{request.id}-0"]
    ended = site.request(request.id, NodeRequestState.ENDED)
    assert ended.engine_state == "ended"
    folders = [machine.requests() / request.id for machine in lab.gpus]
    (kept,) = [folder for folder in folders if folder.exists()]
    assert "drained" in (kept / "log").read_text()
    assert not (kept / "secrets").exists()
    assert_no_secret_is_shown(site)

"""A hostile program fills a volume of its node, faster than its supervisor counts.

Each outcome is a line of "What a hostile program gets" in docs/programs.md.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.control_plane import ControlPlane, course, disk_of, finished, wait_for
from tests.e2e.workers import Worker, joined_node
from tests.other_users import needs_root, open_folder, packages, python_in
from trainyard.client.sdk import Client
from trainyard.protocol.rest.jobs import JobView

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), needs_root]
SIZE, MIB = "192m", 2**20
FILL = """
dd if=/dev/zero of="{place}/large" bs=1M 2> /dev/null
test {private} = no || chmod 700 "{place}"
test -e "{place}/large" && echo filled
{then}
"""
STEADY = """
import sys, time
from pathlib import Path
import trainyard

run, end = trainyard.init(), Path(sys.argv[1])
step = 0
while not end.exists():
    step += 1
    run.log({"train/loss": 1.0}, step=step)
    time.sleep(0.05)
(end.parent / "steps").write_text(str(step))
"""


@dataclass(frozen=True)
class Node:
    """A node whose ranks have users of their own, and a volume of it."""

    worker: Worker
    yard: Client
    data: Path
    volume: Path

    def submit(self, name: str, *command: str) -> str:
        """Submit a program that runs once, without a retry."""
        spec: dict[str, Any] = {
            "name": name,
            "program": {"command": command, "launcher": "command"},
            "retry": {"max_retries": 0},
            "resources": {"world_size": 1, "device": "cpu"},
        }
        return self.yard.submit(spec).id

    def fill(self, place: str, *, then: str, private: str = "no") -> JobView:
        """Fill the volume of a folder to its last byte."""
        script = FILL.format(place=place, then=then, private=private)
        return finished(self.yard, self.submit("fill", "sh", "-c", script))

    @property
    def free(self) -> int:
        """Bytes that are free on the volume."""
        return shutil.disk_usage(self.volume).free


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that takes programs."""
    made = ControlPlane(tmp_path_factory.mktemp("volumes"))
    try:
        made.connect().close()
        yield made
    finally:
        made.end()


@pytest.fixture(params=["data-folder", "root"])
def node(plane: ControlPlane, yard: Client, request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node with a small volume for its data folder, or for a storage root."""
    yard.drain(plane.node)
    with open_folder() as folder, disk_of(SIZE, folder / "volume"):
        (folder / "volume").chmod(0o755)
        for name in ("checkpoints", "python"):
            (folder / name).mkdir()
        of_root = request.param == "root"
        data = folder / ("volume" if of_root else "data")
        data.mkdir(exist_ok=True)
        environment = {
            "TRAINYARD_ROOTS": f"checkpoints={folder / 'checkpoints'},data={data}",
            "TRAINYARD_RUN_AS": "nobody:62300-5",
            "PYTHONPATH": packages(),
        }
        own = folder / ("own" if of_root else "volume/own")
        python = python_in(folder / "python")
        with joined_node(plane, yard, own, python=python, **environment) as worker:
            yield Node(worker, yard, data, folder / "volume")
            for job in yard.jobs(states=["queued", "starting", "running", "stopping"]):
                yard.cancel(job.id, reason="the test has ended")
                finished(yard, job.id)
    yard.undrain(plane.node)


def test_a_full_volume_costs_the_program_that_filled_it_and_no_other(
    node: Node, request: pytest.FixtureRequest
) -> None:
    end = node.data / "end"
    script = node.data / "steady.py"
    script.write_text(STEADY)
    steady = node.submit("steady", "python", str(script), str(end))
    wait_for(lambda: node.yard.job(steady).state == "running", "the other job")

    of_root = "root" in request.node.name
    if of_root:
        filled = node.fill(str(node.data), then="exit 3")
        assert filled.state == "failed"
        (attempt,) = node.yard.attempts(filled.id)
        assert attempt.failure is not None
        assert attempt.failure.reason == "program_error"
        assert node.free == 0
        (node.data / "large").unlink()  # as its owner does: the files of a root stay
    else:
        filled = node.fill("$HOME", then="sleep 600", private="yes")
        assert filled.state == "failed"
        (attempt,) = node.yard.attempts(filled.id)
        assert attempt.failure is not None
        assert attempt.failure.reason == "disk_limit"
        assert attempt.failure.message.endswith(", and the disk is about to be full")
        assert node.free > 128 * MIB, "what it wrote is removed"
    assert [line.text for line in node.yard.logs(filled.id, rank=0).lines] in (["filled"], [])

    later = finished(node.yard, node.submit("later", "sh", "-c", "echo runs"))
    assert later.state == "succeeded", later.reason
    end.touch()
    done = finished(node.yard, steady)
    assert (done.state, done.attempt) == ("succeeded", 1), done.reason
    steps = int((node.data / "steps").read_text())
    assert course(node.yard, steady).steps["train/loss"] == list(range(1, steps + 1))

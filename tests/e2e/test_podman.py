"""Ranks in containers of a real Podman, as root and as the attempt's own user.

`make test-podman` installs Podman and runs these; the image is made of busybox and of this Python,
without a network.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.attack.test_programs import processes_of
from tests.e2e.control_plane import (
    REPOSITORY,
    ControlPlane,
    Run,
    course,
    finished,
    in_state,
    wait_for,
)
from tests.e2e.workers import Worker, joined_node
from tests.other_users import needs_root, open_folder, packages, python_in
from trainyard.client.sdk import Client
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.states import JobState
from trainyard.run.directory import RunDirectory
from worker.launchers.podman import SCRATCH, STORE, scratch_prefix

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs_root,
    pytest.mark.skipif(
        os.environ.get("TRAINYARD_TEST_PODMAN") is None,
        reason="TRAINYARD_TEST_PODMAN is not set; make test-podman",
    ),
]
OF_PODMAN = ("Loaded image: ", "Resource limits are not supported")
LOOK = """
echo "rank $RANK of $WORLD_SIZE as $(id -u)"
echo "$OF_IMAGE $PATH $OF_JOB"
touch /bin/x 2> /dev/null || echo read-only
touch /tmp/x && echo temporary
test -e /etc/passwd.of-the-host || test -e /usr/lib/python3 || echo apart
cat "$TOKEN" 2> /dev/null || echo no token
echo written > "$ROOT/rank-$RANK"
pwd
"""
WAIT = """
trap 'echo saved; exit 0' TERM
(trap '' TERM; exec setsid sleep {mark}) &
echo ready
while true; do sleep 0.1; done
"""
TRAIN = """
import time
import trainyard

run, total, stop = trainyard.init(), 400, False
step = int((run.resume_from / "step").read_text()) if run.resume_from else 0
while step < total and not stop:
    step += 1
    run.log({"train/loss": 1.0 / step}, step=step)
    run.progress(step, total=total)
    stop = run.should_stop()
    if stop or step == total:
        with run.checkpoint(step) as folder:
            (folder / "step").write_text(str(step))
    time.sleep(0.02)
"""


@dataclass(frozen=True)
class Node:
    """A node with Podman and an image."""

    worker: Worker
    yard: Client
    data: Path
    isolated: bool

    def submit(self, name: str, script: str, *, ranks: int = 1, **program: Any) -> str:
        """Submit a shell script as a program in the image."""
        given = {
            "command": ["sh", "-c", script],
            "launcher": "command",
            "environment": {"container": "data:image.tar"},
            **program,
        }
        return self.yard.submit(
            {
                "name": name,
                "program": given,
                "retry": {"max_retries": 0},
                "resources": {"world_size": ranks, "device": "cpu"},
                "env": {
                    "OF_JOB": "of the job",
                    "TOKEN": str(self.worker.data / "node.token"),
                    "ROOT": str(self.data),
                },
            }
        ).id

    def waiting(self, name: str, mark: str) -> tuple[str, Run]:
        """Submit a program that waits, and return it once it waits."""
        job_id = self.submit(name, WAIT.format(mark=mark))
        in_state(self.yard, job_id, JobState.RUNNING)
        wait_for(lambda: "ready" in self.said(job_id), f"program of {name}")
        wait_for(lambda: processes_of("sleep", mark), "its process")
        return job_id, self.run(job_id)

    def run(self, job_id: str) -> Run:
        """Return the run of the first attempt."""
        return Run(RunDirectory(self.worker.data / "runs" / job_id / "1"))

    def said(self, job_id: str, rank: int = 0) -> list[str]:
        """Return the log of a rank, without Podman's own output."""
        lines = [line.text for line in self.yard.logs(job_id, rank=rank).lines]
        return [line for line in lines if not line.startswith(OF_PODMAN)]

    def assert_nothing_left(self, job_id: str) -> None:
        """Check that no process, mount or folder of an ended attempt remains."""
        root = self.run(job_id).files.root

        def gone() -> bool:
            return not [*SCRATCH.glob(f"{scratch_prefix(root)}*"), *root.glob(STORE)]

        wait_for(gone, "removal of the image")
        assert str(root) not in Path("/proc/self/mountinfo").read_text()
        of_engine = [*_running("conmon", root), *_running("podman", root)]
        assert of_engine == []


def _running(name: str, root: Path) -> list[str]:
    found = subprocess.run(("ps", "-eo", "args"), capture_output=True, text=True, check=True)
    return [line for line in found.stdout.splitlines() if name in line and str(root) in line]


def copy_python(root: Path) -> None:
    """Copy this interpreter with the library, its packages and their shared libraries."""
    python, packages = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    unneeded = shutil.ignore_patterns("test", "tests", "site-packages", "config-*", "__pycache__")
    copied = root / packages.relative_to("/")
    shutil.copytree(packages, copied, ignore=unneeded, symlinks=True)
    shutil.copytree(REPOSITORY / "library" / "trainyard", copied / "site-packages" / "trainyard")
    loaded = {python}
    for binary in (python, *(packages / "lib-dynload").glob("*.so")):
        found = subprocess.run(("ldd", str(binary)), capture_output=True, text=True, check=True)
        loaded |= {Path(word) for word in found.stdout.split() if word.startswith("/")}
    for file in loaded:
        target = root / file.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)
    (root / "bin" / "python").symlink_to(python)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of an image that holds busybox."""
    folder = tmp_path_factory.mktemp("image")
    programs = folder / "root" / "bin"
    programs.mkdir(parents=True)
    shutil.copy2("/bin/busybox", programs)
    for name in ("sh", "cat", "id", "touch", "sleep", "setsid", "test", "env"):
        (programs / name).symlink_to("busybox")
    for name in ("dev", "proc", "sys", "tmp", "etc", "run", "var/tmp"):
        (folder / "root" / name).mkdir(parents=True)
    (folder / "root" / "private").mkdir(0o700)
    copy_python(folder / "root")
    subprocess.run(("tar", "-C", "root", "-cf", "root.tar", "."), cwd=folder, check=True)
    store = ("--root", str(folder / "store"), "--runroot", str(folder / "run"))
    podman = ("unshare", "--mount", "podman", *store, "--storage-driver=vfs")
    variables = ("--change", "ENV PATH=/image/bin:/bin", "--change", "ENV OF_IMAGE=image")
    archive = folder / "image.tar"
    for words in (
        ("import", *variables, "root.tar", "busybox:1"),
        ("save", "--format=docker-archive", "--output", str(archive), "busybox:1"),
    ):
        subprocess.run((*podman, *words), cwd=folder, check=True)
    archive.chmod(0o644)
    return archive


@pytest.fixture(scope="module", params=["root", "user"])
def node(plane: ControlPlane, image: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node with ranks as root, or as their own users without further ids."""
    isolated = request.param == "user"
    with open_folder() as folder, plane.connect() as yard:
        yard.drain(plane.node)
        for name in ("checkpoints", "data", "python"):
            (folder / name).mkdir()
        shutil.copy2(image, folder / "data" / "image.tar")
        (folder / "data" / "broken.tar").write_bytes(bytes(10_240))
        environment = {
            "TRAINYARD_ROOTS": f"checkpoints={folder / 'checkpoints'},data={folder / 'data'}",
            "PYTHONPATH": packages(),
        }
        if isolated:
            environment["TRAINYARD_RUN_AS"] = "nobody:62400-6"
        python = python_in(folder / "python")
        own = folder / f"{request.param}-with-a-name-that-is-too-long-for-sockets"
        with joined_node(plane, yard, own, python=python, **environment) as worker:
            yield Node(worker, yard, folder / "data", isolated)
            yard.drain(worker.name)  # no job of the next node is placed here
        yard.undrain(plane.node)


def test_ranks_run_in_the_image_and_see_what_is_bound(node: Node) -> None:
    job_id = node.submit("look", LOOK, ranks=2, launcher="torchrun")
    done = finished(node.yard, job_id)
    assert done.state == "succeeded", (done.reason, node.said(job_id))
    folder = node.run(job_id).files.root / "code"
    for rank in (0, 1):
        assert node.said(job_id, rank) == [
            f"rank {rank} of 2 as 0",
            "image /image/bin:/bin of the job",
            "read-only",
            "temporary",
            "apart",
            "no token",  # it is not bound
            str(folder),
        ]
        made = node.data / f"rank-{rank}"
        assert made.read_text() == "written\n"
        assert (made.stat().st_uid != 0) == node.isolated
    node.assert_nothing_left(job_id)


def test_a_stop_reaches_the_program_and_nothing_is_left(node: Node) -> None:
    mark = f"86400.{uuid.uuid4().int % 10**9}"
    job_id, _ = node.waiting("stopped", mark)
    node.yard.stop(job_id)
    stopped = finished(node.yard, job_id)
    assert stopped.state == "stopped", stopped.reason
    assert "saved" in node.said(job_id)
    assert processes_of("sleep", mark) == []
    node.assert_nothing_left(job_id)


def test_a_program_saves_and_resumes_in_the_image(node: Node) -> None:
    folder = node.data / "mine"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    program: dict[str, Any] = {"command": ["train.py"], "code": {"folder": "data:mine"}}
    job_id = node.submit("saves", "", resume="any_world_size", **program)
    wait_for(lambda: (node.yard.job(job_id).progress.step or 0) >= 20, "20 steps")
    node.yard.stop(job_id)
    stopped = finished(node.yard, job_id)
    assert stopped.state == "stopped", (stopped.reason, node.said(job_id))
    newest = next(node.yard.checkpoints(job_id)).step
    assert newest < 400, "it was stopped on its way"
    node.yard.resume(job_id)
    done = finished(node.yard, job_id)
    assert (done.state, done.attempt) == ("succeeded", 2), done.reason
    points = course(node.yard, job_id)
    assert points.steps["train/loss"] == list(range(1, 401))
    assert [points.attempts[step] for step in (newest, newest + 1)] == [1, 2]
    node.assert_nothing_left(job_id)


def test_a_cancel_ends_what_the_program_left_in_the_container(node: Node) -> None:
    mark = f"86400.{uuid.uuid4().int % 10**9}"
    job_id, _ = node.waiting("cancelled", mark)
    node.yard.cancel(job_id)
    assert finished(node.yard, job_id).state == "cancelled"
    wait_for(lambda: processes_of("sleep", mark) == [], "end of its process")
    node.assert_nothing_left(job_id)


def test_containers_end_with_a_supervisor_that_is_killed(node: Node) -> None:
    mark = f"86400.{uuid.uuid4().int % 10**9}"
    job_id, run = node.waiting("orphaned", mark)
    os.kill(run.supervisor_pid(), signal.SIGKILL)
    assert finished(node.yard, job_id).state == "failed"
    wait_for(lambda: processes_of("sleep", mark) == [], "end of its process")
    node.assert_nothing_left(job_id)


def failure_of(node: Node, job: JobView) -> tuple[str, str]:
    """Return reason and text of the failure of a job's only attempt."""
    assert job.state == "failed"
    (attempt,) = node.yard.attempts(job.id)
    assert attempt.failure is not None
    return attempt.failure.reason, f"{attempt.failure.message} {attempt.failure.traceback}"


def test_exit_codes_of_the_container_are_those_of_the_rank(node: Node) -> None:
    job_id = node.submit("fails", "echo its last line; exit 3")
    reason, text = failure_of(node, finished(node.yard, job_id))
    assert reason == "program_error"
    assert "its last line" in text
    assert "exit code 3" in text, text
    node.assert_nothing_left(job_id)


def test_an_archive_that_holds_no_image_is_a_launch_error(node: Node) -> None:
    environment = {"container": "data:broken.tar"}
    job_id = node.submit("broken", "true", environment=environment)
    reason, text = failure_of(node, finished(node.yard, job_id))
    assert reason == "launch_error"
    assert "the loading of the image ended with status 125" in text
    assert "Error:" in text
    node.assert_nothing_left(job_id)

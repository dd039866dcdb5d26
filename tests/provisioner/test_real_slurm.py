"""The source on a real Slurm: lost, doubled, killed, requeued and forgotten jobs, and proofs.

`make test-slurm` installs Slurm and runs this file.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from provisioner.base import LoginNeeded, Place, Shape, SourceError, Submission
from provisioner.slurm import SlurmSource
from provisioner.slurm_options import SlurmOptions
from tests.provisioner.slurm_rig import SlurmRig, missing, wait_for
from tests.provisioner.ssh.machines import make_key
from trainyard.base.ids import make_id
from trainyard.protocol.node_sources.messages import EngineJob, job_name

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
    pytest.mark.timeout(600),
]
PILOT = """#!/bin/bash
echo "$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}.$SLURM_PROCID $(hostname) $CUDA_VISIBLE_DEVICES $*"
trap 'echo "$SLURM_PROCID: USR1"' USR1
trap 'echo "$SLURM_PROCID: TERM"; sleep 2; echo "$SLURM_PROCID: saved"; exit 0' TERM
while :; do sleep 0.1; done
"""


SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin")
SSHD_CONFIG = """
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
SetEnv SLURM_CONF={slurm_conf}
"""
SSH_CONFIG = """
Host login
    HostName 127.0.0.1
    Port {port}
    IdentityFile {folder}/{key}
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    # The first call opens a master connection, which outlives it and holds its outputs.
    ControlMaster auto
    ControlPersist 60
    ControlPath {sockets}/{key}
"""


@dataclass
class Cluster:
    """A source on the rig, with the requests of a test."""

    rig: SlurmRig
    source: SlurmSource
    folder: Path
    requests: list[str] = field(default_factory=list)

    def submission(self, *, nodes: int = 1, seconds: float | None = 3600) -> Submission:
        """Return a new request."""
        request_id = make_id(milliseconds=int(time.time() * 1000), entropy=os.urandom(10))
        folder = self.folder / "requests" / request_id
        folder.mkdir(parents=True)
        secrets = folder / "secrets"
        secrets.write_text("".join(f"secret-{index}\n" for index in range(nodes)))
        secrets.chmod(0o600)
        self.requests.append(request_id)
        variables = {"TRAINYARD_PILOT_REQUEST": request_id, "TRAINYARD_LABELS": "a='b c'"}
        shape = Shape(nodes=nodes, slots=1, device="cuda")
        return Submission(request_id, "nodes", shape, seconds, secrets, variables)

    def running(self, submission: Submission) -> EngineJob:
        """Submit and return the job once its pilots have started."""
        self.source.submit(submission)
        self.wait_for_log(submission.request_id, " -m worker pilot", submission.shape.nodes)
        return self.job(submission.request_id, "running")

    def job(self, request_id: str, state: str, *, seconds: float = 120) -> EngineJob:
        """Return the job once it has this state."""

        def look() -> EngineJob | None:
            found = self.source.status([request_id])
            return next((job for job in found if job.state == state), None)

        return wait_for(look, f"{state} job", seconds=seconds)

    def wait_for_log(self, request_id: str, words: str, count: int = 1) -> str:
        """Return the output of a request's pilots once it contains the words a number of times."""

        def look() -> str | None:
            path = self.folder / "requests" / request_id / "pilots.log"
            text = path.read_text() if path.exists() else ""
            return text if text.count(words) >= count else None

        return wait_for(look, f"{words!r} in the log", seconds=120)

    def ids_of(self, request_id: str) -> Sequence[str]:
        """Return the ids of all jobs of the name of a request that have not ended."""
        name = f"--name={job_name(request_id)}"
        return self.rig.run("squeue", "--noheader", "--format=%i", name).split()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmRig]:
    cluster = SlurmRig(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(rig: SlurmRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    for name, value in rig.environment.items():
        monkeypatch.setenv(name, value)
    pilot = tmp_path / "pilot"
    pilot.write_text(PILOT)
    pilot.chmod(0o755)
    place = Place(name="pool", python=str(pilot), folder=tmp_path)
    options = SlurmOptions(options=("--partition=main",), signal_seconds=30)
    made = Cluster(rig, SlurmSource(place, options), tmp_path)
    yield made
    for request_id in made.requests:
        made.source.cancel(request_id)
    wait_for(lambda: not any(map(made.ids_of, made.requests)), "end of all jobs")


def test_a_request_becomes_pilots_and_ends_when_it_is_cancelled(cluster: Cluster) -> None:
    submission = cluster.submission(nodes=2)
    job = cluster.running(submission)
    assert job.starts_at is not None
    assert job.ends_at == pytest.approx(job.starts_at + 3600, abs=5)
    assert [node.host for node in job.nodes] == ["n1", "n2"]
    assert [node.instance for node in job.nodes] == [f"{job.ref}.0.0", f"{job.ref}.0.1"]
    assert [node.addresses for node in job.nodes] == [
        (cluster.rig.address_of(node.host),) for node in job.nodes
    ]
    text = cluster.wait_for_log(submission.request_id, "worker pilot", 2)
    for node in job.nodes:  # the pilot computes the same name of its life, on the same machine
        assert f"{node.instance} {node.host} 0 -m worker pilot" in text
    assert "secret-" not in cluster.rig.run("scontrol", "write", "batch_script", job.ref, "-")
    assert job in cluster.source.list().jobs
    assert "NodeList=n[1-2]" in cluster.source.explain(submission.request_id)

    cluster.source.cancel(submission.request_id)
    ended = cluster.job(submission.request_id, "ended")
    assert (ended.gone, ended.ref, ended.nodes) == (True, job.ref, ())
    assert "CANCELLED" in ended.reason
    cluster.wait_for_log(submission.request_id, ": saved", 2)  # they had KillWait for it
    cluster.source.cancel(submission.request_id)


def test_a_pending_request_has_slurms_reason(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.running(cluster.submission(nodes=3))
    waiting = cluster.submission(nodes=3)
    cluster.source.submit(waiting)

    def look() -> EngineJob | None:
        job = cluster.job(waiting.request_id, "pending")
        return job if job.reason == "Resources" else None

    job = wait_for(look, "reason")
    assert (job.gone, job.nodes) == (False, ())


def test_a_doubled_sbatch_leaves_the_older_job(cluster: Cluster, tmp_path: Path) -> None:
    submission = cluster.submission()
    job = cluster.running(submission)
    assert cluster.source.submit(submission) == job.ref
    name, comment = f"--job-name={job_name(submission.request_id)}", "--comment=trainyard/pool/1"
    cluster.rig.run("sbatch", name, comment, f"--output={tmp_path}/x", "--wrap=sleep 600")
    wait_for(lambda: len(cluster.ids_of(submission.request_id)) == 2, "second job")
    jobs = cluster.source.list().jobs
    listed = [each for each in jobs if each.request_id == submission.request_id]
    assert [each.ref for each in listed] == [job.ref]
    wait_for(lambda: list(cluster.ids_of(submission.request_id)) == [job.ref], "one job")


def test_a_lost_sbatch_is_found(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = tmp_path / "bin" / "sbatch"
    lost.parent.mkdir()
    lost.write_text('#!/bin/sh\n/usr/bin/sbatch "$@" > /dev/null\nkill -9 $$\n')
    lost.chmod(0o755)
    submission = cluster.submission()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{lost.parent}:{os.environ['PATH']}")
        with pytest.raises(SourceError) as error:
            cluster.source.submit(submission)
    assert not error.value.refused
    (found,) = cluster.ids_of(submission.request_id)
    assert cluster.source.submit(submission) == found
    assert list(cluster.ids_of(submission.request_id)) == [found]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--partition=nope",), "invalid partition"),
        (("--no-such-option",), "unrecognized option"),
        (("--gres=gpu:9",), "not available"),
    ],
)
def test_a_request_that_slurm_will_never_take_is_refused(
    cluster: Cluster, change: tuple[str, ...], words: str
) -> None:
    place = Place(name="pool", python="python3", folder=cluster.folder)
    source = SlurmSource(place, SlurmOptions(options=change, gres=""))
    with pytest.raises(SourceError, match=words) as error:
        source.submit(cluster.submission())
    assert error.value.refused


def test_the_time_limit_is_announced_and_then_proves_the_end(cluster: Cluster) -> None:
    submission = cluster.submission(seconds=60)
    job = cluster.running(submission)
    assert job.ends_at is not None
    cluster.rig.run("scontrol", "update", f"jobid={job.ref}", "timelimit=+1")
    moved = cluster.job(submission.request_id, "running")
    assert moved.ends_at == job.ends_at + 60
    cluster.rig.run("scontrol", "update", f"jobid={job.ref}", "timelimit=1")
    notice = cluster.folder / "requests" / submission.request_id / "notice"
    wait_for(notice.exists, "notice", seconds=120)
    text = cluster.wait_for_log(submission.request_id, "0: TERM")
    assert "USR1" not in text  # it would reach every process of the step, ranks too
    ended = cluster.job(submission.request_id, "ended")
    assert ended.gone
    assert "TIMEOUT" in ended.reason


def test_a_requeue_by_the_operator_is_another_life(cluster: Cluster) -> None:
    submission = cluster.submission(nodes=2)
    job = cluster.running(submission)
    cluster.rig.run("scontrol", "update", f"jobid={job.ref}", "requeue=1")
    cluster.rig.run("scontrol", "requeue", job.ref)
    cluster.job(submission.request_id, "completing")  # as one that ends, until its steps have
    waiting = cluster.job(submission.request_id, "pending")
    assert not waiting.gone
    again = cluster.job(submission.request_id, "running")
    assert again.ref == job.ref
    lives = {node.instance: node.gone for node in again.nodes}
    assert lives == {
        f"{job.ref}.0.0": True,
        f"{job.ref}.0.1": True,
        f"{job.ref}.1.0": False,
        f"{job.ref}.1.1": False,
    }
    cluster.wait_for_log(submission.request_id, f"{job.ref}.1.0 ")


def test_a_killed_controller_is_no_proof_and_ends_nothing(cluster: Cluster) -> None:
    submission = cluster.submission()
    job = cluster.running(submission)
    other = cluster.submission()
    cluster.rig.change_and_save("scontrol", "update", f"jobid={job.ref}", "timelimit=50")
    cluster.rig.kill_controller()
    try:
        calls: tuple[Callable[[], object], ...] = (
            cluster.source.list,
            lambda: cluster.source.status([submission.request_id]),
            lambda: cluster.source.submit(other),
            lambda: cluster.source.cancel(submission.request_id),
        )
        for call in calls:
            with pytest.raises(SourceError) as error:
                call()
            assert not error.value.refused
    finally:
        cluster.rig.start_controller()
    again = cluster.job(submission.request_id, "running")
    assert (again.ref, again.nodes) == (job.ref, job.nodes)


def test_a_forgotten_job_is_unknown(cluster: Cluster) -> None:
    submission = cluster.submission()
    cluster.running(submission)
    cluster.source.cancel(submission.request_id)
    assert cluster.job(submission.request_id, "ended").gone
    wait_for(lambda: not cluster.source.status([submission.request_id]), "oblivion", seconds=200)
    listed = {each.request_id for each in cluster.source.list().jobs}
    assert submission.request_id not in listed
    assert "has no job named" in cluster.source.explain(submission.request_id)


def test_a_failed_node_is_no_proof(cluster: Cluster) -> None:
    submission = cluster.submission(nodes=2)
    job = cluster.running(submission)
    name = job.nodes[1].host
    cluster.rig.kill_node(name)
    try:
        wait_for(lambda: "down" in cluster.rig.states()[name], "failed node", seconds=120)
        left = cluster.job(submission.request_id, "running")
        lives = [(node.instance, node.gone) for node in left.nodes]
        assert lives == [(node.instance, False) for node in job.nodes]
        assert left.nodes[1].addresses == ()
    finally:
        cluster.rig.start_node(name)
    wait_for(lambda: "idle" in cluster.rig.states()[name], name)


def test_a_job_whose_only_node_fails_is_not_proved_gone(cluster: Cluster) -> None:
    submission = cluster.submission()
    job = cluster.running(submission)
    name = job.nodes[0].host
    cluster.rig.kill_node(name)
    try:
        ended = cluster.job(submission.request_id, "ended", seconds=200)
        assert "NODE_FAIL" in ended.reason
        assert not ended.gone
    finally:
        cluster.rig.start_node(name)
    wait_for(lambda: "idle" in cluster.rig.states()[name], name)


@pytest.fixture
def login(rig: SlurmRig, tmp_path: Path) -> Iterator[Callable[[str], tuple[str, ...]]]:
    """A login node behind a real sshd; returns the command that reaches it with a key."""
    if SSHD is None:
        pytest.skip("no sshd: `make test-ssh` installs one")
    for name in ("host_key", "key", "other"):
        make_key(tmp_path / name)
    sockets = tempfile.mkdtemp(prefix="ty-")  # short: a socket's path has 108 bytes
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    known = f"[127.0.0.1]:{port} {(tmp_path / 'host_key.pub').read_text()}"
    (tmp_path / "known_hosts").write_text(known)
    config, conf = tmp_path / "sshd_config", rig.environment["SLURM_CONF"]
    config.write_text(SSHD_CONFIG.format(port=port, folder=tmp_path, slurm_conf=conf))
    Path("/run/sshd").mkdir(exist_ok=True)

    def command(key: str) -> tuple[str, ...]:
        path = tmp_path / f"{key}.config"
        path.write_text(SSH_CONFIG.format(port=port, folder=tmp_path, key=key, sockets=sockets))
        return ("ssh", "-F", str(path), "login")

    with (tmp_path / "sshd.log").open("wb") as log:
        sshd = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stdout=log, stderr=log)
    try:
        wait_for(lambda: b"listening" in (tmp_path / "sshd.log").read_bytes(), "sshd")
        yield command
    finally:
        if Path(sockets, "key").exists():
            subprocess.run([*command("key")[:3], "-O", "exit", "login"], check=False)
        sshd.kill()
        sshd.wait()
        shutil.rmtree(sockets)


def test_a_login_node_is_reached_by_ssh(
    cluster: Cluster, login: Callable[[str], tuple[str, ...]], tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    place = Place(name="pool", python=str(tmp_path / "pilot"), folder=tmp_path)

    def source_with(key: str) -> SlurmSource:
        return SlurmSource(place, SlurmOptions(ssh=login(key), folder=str(shared)))

    source = source_with("key")
    began = time.monotonic()
    submission = cluster.submission(nodes=2)
    source.submit(submission)
    assert time.monotonic() - began < 25, "no call waited for the master connection to end"
    secrets = shared / submission.request_id / "secrets"
    assert secrets.stat().st_mode & 0o777 == 0o600
    assert secrets.read_text() == "secret-0\nsecret-1\n"
    log = shared / submission.request_id / "pilots.log"
    wait_for(lambda: log.exists() and log.read_text().count("worker pilot") == 2, "pilots")
    (job,) = source.status([submission.request_id])
    assert [node.addresses for node in job.nodes] == [
        (cluster.rig.address_of(node.host),) for node in job.nodes
    ]
    source.cancel(submission.request_id)
    cluster.job(submission.request_id, "ended")
    assert [each.request_id for each in source.list().jobs if each.state == "ended" and each.gone]
    assert not secrets.exists()

    with pytest.raises(LoginNeeded, match="Permission denied") as needed:
        source_with("other").list()
    assert needed.value.command == f"ssh -MNf -F {tmp_path}/other.config login"

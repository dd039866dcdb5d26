"""The Compose files under Podman: jobs, ends of servers and database, secrets, users, volumes.

`make test-compose` makes the machine and the images first, then runs these in namespaces of mounts,
processes and network of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from itertools import product
from secrets import token_hex

import pytest

from tests.compose import machine
from tests.compose.machine import PLACE, PODMAN, SOCKET, podman, run
from tests.compose.project import (
    SECRETS_GROUP,
    HealthTimers,
    Project,
    Tool,
    opened,
    secrets,
)
from tests.e2e.control_plane import (
    assert_each_once,
    course,
    finished,
    in_state,
    spec,
    wait_for,
)
from trainyard.client.errors import TrainyardError
from trainyard.client.sdk import Client
from trainyard.protocol.states import JobState

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        os.environ.get("TRAINYARD_TEST_COMPOSE") is None,
        reason="TRAINYARD_TEST_COMPOSE is not set; make test-compose",
    ),
]
RANKS = range(200_000, 201_025)
"""User ids of ranks: `TRAINYARD_RUN_AS` of docker-compose.yml."""
SECRETS_OF = {
    "server": {"postgres-password", "redis-password", "oidc-client-secret"},
    "worker": {"redis-password", "join-token"},
}
"""Secrets that a container has, and no other ones."""
SERVER_IMAGE = "localhost/trainyard-server"
FOR_LONG = 100_000


@pytest.fixture(scope="module", autouse=True)
def podman_machine() -> Iterator[None]:
    """A machine with the images, whose health checks run; nothing is left of what it ran."""
    started = machine.start()
    run(("ip", "link", "set", "lo", "up"))
    service = subprocess.Popen((PODMAN, "system", "service", "--time=0", f"unix://{SOCKET}"))
    timers = HealthTimers()
    try:
        yield
    finally:
        timers.end()
        service.terminate()
        service.wait()
        podman("system", "reset", "--force")
        started.kill()
        started.communicate()


@pytest.fixture(scope="module", params=["one server", "two servers"])
def project(request: pytest.FixtureRequest) -> Iterator[Project]:
    """The services of docker-compose.yml, or those of both files, with a worker that has joined."""
    if request.param == "one server":
        made = opened(Tool.PODMAN_COMPOSE, "docker-compose.yml", port=8470)
    else:
        files = ("docker-compose.yml", "deploy/compose.two-servers.yml")
        made = opened(Tool.DOCKER_COMPOSE, *files, port=8471)
    with made as running:
        yield running


@pytest.fixture
def yard(project: Project) -> Iterator[Client]:
    """A client with the admin token; jobs of a test end with it."""
    with project.connect() as client:
        yield client
        for job in client.jobs(states=[JobState.RUNNING, JobState.QUEUED, JobState.STARTING]):
            client.cancel(job.id)
            finished(client, job.id)


def submitted(yard: Client, name: str, *, steps: int) -> str:
    """Submit a small job, and return its id."""
    small = {"steps": steps, "seq_len": 32}
    return yard.submit(spec(name, training=small, env={"OMP_NUM_THREADS": "1"})).id


def step_of(yard: Client, job_id: str) -> int:
    """Return the last step of a job that the server knows; 0 where it does not answer."""
    with contextlib.suppress(TrainyardError):
        return yard.job(job_id).progress.step or 0
    return 0


def running(yard: Client, name: str) -> str:
    """Submit a job that runs for long, and return its id once it trains."""
    job_id = submitted(yard, name, steps=FOR_LONG)
    in_state(yard, job_id, JobState.RUNNING)
    wait_for(lambda: step_of(yard, job_id) >= 5, "steps")
    return job_id


def newer_version() -> None:
    """Give the name of the servers' image to another one, as a build of a newer version does."""
    folder = PLACE / "newer"
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(f"FROM {SERVER_IMAGE}\nLABEL version={token_hex(4)}\n")
    podman("build", "--tag", SERVER_IMAGE, str(folder))


def assert_goes_on(yard: Client, job_id: str) -> None:
    """The job trains on in its first attempt."""
    before = wait_for(lambda: step_of(yard, job_id), "an answer")
    wait_for(lambda: step_of(yard, job_id) >= before + 5, f"steps after {before}")
    job = yard.job(job_id)
    assert (job.state, job.attempt) == ("running", 1), job.reason


def test_the_image_of_the_provisioner_starts() -> None:
    shown = podman("run", "--rm", "localhost/provisioner", "python", "-m", "provisioner", "--help")
    assert "conform" in shown


def test_a_job_succeeds(yard: Client) -> None:
    job = finished(yard, submitted(yard, "short", steps=40))
    assert job.state == "succeeded", job.reason
    assert_each_once(yard, job.id, steps=40)


def test_a_job_resumes_on_another_size(yard: Client) -> None:
    job_id = submitted(yard, "resized", steps=100)
    wait_for(lambda: step_of(yard, job_id) >= 5, "5 steps")
    yard.stop(job_id)
    assert finished(yard, job_id).state == "stopped"
    newest = next(yard.checkpoints(job_id)).step
    yard.resume(job_id, world_size=3)
    job = finished(yard, job_id)
    assert (job.state, job.attempt) == ("succeeded", 2), job.reason
    assert_each_once(yard, job_id, steps=100)
    attempts = course(yard, job_id).attempts
    assert [attempts[step] for step in (newest, newest + 1)] == [1, 2]


def test_secrets_are_files_alone(project: Project) -> None:
    shown = podman("inspect", *project.services().values())
    for container in json.loads(shown):
        assert container["Config"]["Env"], "the view has the environment"
    for name, secret in secrets().items():
        assert len(secret) > 20
        assert secret not in shown, name
        for service in project.running():
            # The official script leaves the password in the environment of the database's process.
            shown_by = ["cmdline"] if service == "postgres" else ["cmdline", "environ"]
            for process, file in product(project.processes(service), shown_by):
                words = process.joinpath(file).read_text(errors="replace")
                assert secret not in words, (name, service, file, words)


def test_no_process_is_root_and_ranks_read_no_secret(project: Project, yard: Client) -> None:
    running(yard, "users")
    ranks = set()
    for service in project.running():
        for process in project.processes(service):
            lines = (process / "status").read_text().splitlines()
            status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            users = {*map(int, status["Uid"].split())}
            assert 0 not in users, (service, (process / "cmdline").read_text())
            if users <= {*RANKS}:
                ranks |= users
                groups = {*map(int, [*status["Gid"].split(), *status["Groups"].split()])}
                assert not groups & {0, SECRETS_GROUP}, groups
    assert len(ranks) == 1, "one job, and each of its processes has its user"
    for service, own in SECRETS_OF.items():
        assert {*project.execute(service, "ls", "/run/secrets").split()} == own
        for secret in own:
            of_file = project.execute(service, "stat", "-Lc", "%u:%g:%a", f"/run/secrets/{secret}")
            assert of_file.strip() == f"0:{SECRETS_GROUP}:440"
    assert set().union(*SECRETS_OF.values()) == {*secrets()}


def test_logs_are_limited(project: Project) -> None:
    for service in project.services():
        config = project.inspect(service)["HostConfig"]["LogConfig"]
        assert config["Size"].lower().startswith("20m"), (service, config)


def test_a_job_outlives_a_server_that_is_killed(project: Project, yard: Client) -> None:
    job_id = running(yard, "killed-server")
    pid = project.inspect("server")["State"]["Pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: project.inspect("server")["State"]["Pid"] not in (0, pid), "restart")
    wait_for(lambda: project.health("server") == "healthy", "health")
    assert_goes_on(yard, job_id)


def test_a_job_outlives_an_upgrade_of_the_servers(project: Project, yard: Client) -> None:
    job_id = running(yard, "upgraded")
    newer_version()
    former = {name: project.inspect(name)["Image"] for name in project.running()}

    def look() -> None:
        yard.job(job_id)

    if project.tool is Tool.PODMAN_COMPOSE:
        # It makes no container anew for a newer image, and with --force-recreate the worker's too.
        upgraded = ["server", "scheduler"]
        podman("rm", "--force", *(project.services()[name] for name in upgraded))
        project.while_composing("up", "--detach", "--no-deps", *upgraded, look=look)
    else:
        upgraded = ["server-2", "scheduler-2", "server", "scheduler"]
        for words in (upgraded[:2], upgraded[2:]):
            failed = project.while_composing("up", "--wait", "--no-deps", *words, look=look)
            assert failed == 0, "the proxy leads to the other server"
    for name in upgraded:
        assert project.inspect(name)["Image"] != former[name], name
    assert_goes_on(yard, job_id)


def test_an_outage_of_the_database_is_seen_and_ends_no_job(project: Project, yard: Client) -> None:
    job_id = running(yard, "outage")
    assert project.health("server") == "healthy"
    project.compose("stop", "postgres")
    wait_for(lambda: project.health("server") == "unhealthy", "unhealthy server")
    project.compose("start", "postgres")
    wait_for(lambda: project.health("server") == "healthy", "healthy server")
    assert_goes_on(yard, job_id)


def test_volumes_outlive_the_containers(project: Project, yard: Client) -> None:
    job_id = submitted(yard, "kept", steps=100)
    wait_for(lambda: step_of(yard, job_id) >= 5, "5 steps")
    yard.stop(job_id)
    assert finished(yard, job_id).state == "stopped"
    former = {*project.services().values()}
    project.compose("down")
    project.start()
    assert not former & {*project.services().values()}
    yard.resume(job_id)
    job = finished(yard, job_id)
    assert (job.state, job.attempt) == ("succeeded", 2), job.reason
    assert_each_once(yard, job_id, steps=100)

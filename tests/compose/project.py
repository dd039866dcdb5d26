"""A project of Compose: its commands, its containers, and the timers of their health checks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from secrets import token_hex
from typing import Any
from uuid import uuid4

from tests.compose import machine
from tests.compose.build import COMPOSE
from tests.compose.machine import PLACE, PODMAN, REPOSITORY, podman, run
from tests.e2e.control_plane import TEXT, wait_for
from trainyard.client.errors import TrainyardError
from trainyard.client.sdk import Client

NAME = "trainyard"
SECRETS_GROUP = 10_001
"""Group of the files of secrets, which is that of the servers."""
SECRETS, DATA = PLACE / "secrets", PLACE / "data"
STAGES = (("postgres", "redis"), ("migrate",), ("server", "scheduler"), ("worker",))
"""Services of docker-compose.yml, each stage after those that it needs."""
VARIABLES = {"SECRETS_DIR": str(SECRETS), "DATA_DIR": str(DATA)}


class HealthTimers:
    """Runs each container's health check at its interval, as systemd does for Podman.

    Podman keeps the state itself: what the check found, and how many failures make it unhealthy.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Run no more checks."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        due: dict[str, float] = {}
        while not self._ended.wait(0.5):
            listed = podman("ps", "--format", "{{.ID}}", check=False).split()
            for container in listed:
                if container not in due:
                    due[container] = time.monotonic()
                if time.monotonic() >= due[container]:
                    pause = self._check(container)
                    due[container] = time.monotonic() + pause if pause else float("inf")

    def _check(self, container: str) -> float:
        """Run the check of a container, and return its interval in seconds; 0 without a check."""
        words = ("inspect", "--format", "{{json .Config.Healthcheck}}", container)
        check = json.loads(podman(*words, check=False) or "null")
        if not check:
            return 0.0
        podman("healthcheck", "run", container, check=False)
        return float(check["Interval"]) / 1e9


class Tool(StrEnum):
    """What carries out Compose files."""

    PODMAN_COMPOSE = "podman-compose"
    DOCKER_COMPOSE = "docker-compose"
    """Compose of Docker, on the socket of Podman."""


@dataclass(frozen=True)
class Project:
    """The services of Compose files."""

    tool: Tool
    files: tuple[str, ...]
    url: str
    """Where clients reach the API."""

    def compose(self, *words: str) -> str:
        """Carry out a command on the files."""
        return run([*self._words(), *words], variables=VARIABLES)

    def while_composing(self, *words: str, look: Callable[[], object]) -> int:
        """Carry out a command, look all the while, and return how many looks failed."""
        failed = 0
        with (PLACE / "compose.log").open("wb") as log:
            command = subprocess.Popen(
                [*self._words(), *words],
                cwd=REPOSITORY,
                env={**os.environ, **VARIABLES},
                stdout=log,
                stderr=log,
            )
            while command.poll() is None:
                try:
                    look()
                except TrainyardError:
                    failed += 1
                time.sleep(0.05)
        assert command.returncode == 0, log.name
        return failed

    def serve(self) -> None:
        """Start the servers and what they need; the API may not answer yet."""
        if self.tool is Tool.PODMAN_COMPOSE:
            self._up_in_stages(STAGES[:-1])
        elif "deploy/compose.two-servers.yml" in self.files:
            self.compose("up", "--detach", "server", "scheduler", "proxy")
        else:
            self.compose("up", "--detach", "server", "scheduler")

    def start(self) -> None:
        """Start all services, and wait until the node is online."""
        if self.tool is Tool.PODMAN_COMPOSE:
            self._up_in_stages(STAGES)
        else:
            self.compose("up", "--detach")
        with self.connect() as yard:
            wait_for(lambda: any(node.online for node in yard.nodes()), "node that is online")

    def _up_in_stages(self, stages: Sequence[Sequence[str]]) -> None:
        """Start services one stage after the other.

        Podman (5.4.2) starts no container that podman-compose made to need one that has ended, as
        the servers need `migrate`, which needs the database.
        """
        for services in stages:
            self.compose("up", "--detach", "--no-deps", *services)
            for service in services:
                wait_for(lambda service=service: self._is_up(service), service)  # type: ignore[misc]

    def _is_up(self, service: str) -> bool:
        state = self.inspect(service)["State"]
        if state.get("Health"):
            return self.health(service) == "healthy"
        return bool(state["Running"]) or (state["Status"], state["ExitCode"]) == ("exited", 0)

    def connect(self) -> Client:
        """Return a connection with the admin token, once the API answers."""
        wait_for(lambda: self.health("server") == "healthy", "healthy server")
        token = self.execute("server", "cat", "/var/lib/trainyard/admin.token").strip()
        client = Client(self.url, token)

        def answers() -> bool:
            with contextlib.suppress(TrainyardError):
                return bool(client.session())
            return False

        wait_for(answers, "answer of the API")
        return client

    def services(self) -> dict[str, str]:
        """Return the id of each service's container, those that have ended included."""
        return self._listed("--all")

    def running(self) -> dict[str, str]:
        """Return the id of each service's container that runs."""
        return self._listed()

    def inspect(self, service: str) -> dict[str, Any]:
        """Return what Podman knows of a service's container; nothing while there is none."""
        found: list[dict[str, Any]] = json.loads(
            podman("inspect", self.services().get(service, "none"), check=False) or "[]"
        )
        return found[0] if found else {}

    def health(self, service: str) -> str:
        """Return `healthy`, `unhealthy` or `starting`; empty without a check or a container."""
        state: dict[str, Any] = self.inspect(service).get("State", {})
        return str((state.get("Health") or {}).get("Status", ""))

    def execute(self, service: str, *command: str) -> str:
        """Run a command in a service's container."""
        return podman("exec", self.services()[service], *command)

    def processes(self, service: str) -> list[Path]:
        """Return the folders below /proc of the processes of a container that runs."""
        lines = podman("top", self.services()[service], "hpid").split()[1:]
        return [folder for pid in lines if (folder := Path("/proc", pid)).exists()]

    def _words(self) -> list[str]:
        files = [word for name in self.files for word in ("--file", name)]
        if self.tool is Tool.PODMAN_COMPOSE:
            return [str(COMPOSE), "--podman-path", str(PODMAN), *files]
        return [str(machine.DOCKER_COMPOSE), *files]

    def _listed(self, *words: str) -> dict[str, str]:
        label = "com.docker.compose"
        form = f'{{{{index .Labels "{label}.service"}}}} {{{{.ID}}}}'
        only = ("--filter", f"label={label}.project={NAME}")
        lines = podman("ps", *words, *only, "--format", form).splitlines()
        return dict(line.split() for line in lines)


def secrets() -> dict[str, str]:
    """Return the secrets of the project by their names."""
    return {path.name: path.read_text().strip() for path in SECRETS.iterdir()}


def write_secret(name: str, secret: str) -> None:
    """Write a file as docs/deployment.md has it: of root, for the group of the servers."""
    path = SECRETS / name
    path.write_text(f"{secret}\n")
    os.chown(path, 0, SECRETS_GROUP)
    path.chmod(0o440)


@contextlib.contextmanager
def opened(tool: Tool, *files: str, port: int) -> Iterator[Project]:
    """Start the services of these files with a worker that joins; end them with their volumes."""
    for folder in (SECRETS, DATA):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    SECRETS.chmod(0o700)
    (DATA / "text.txt").write_text(TEXT)
    (DATA / ".trainyard-root").write_text(f"{uuid4()}\n")  # which the worker cannot write
    for name in ("postgres-password", "redis-password", "join-token", "oidc-client-secret"):
        write_secret(name, token_hex(24))
    project = Project(tool, files, f"http://127.0.0.1:{port}")
    try:
        # As the page has it: the token with which the worker joins comes from the server.
        project.serve()
        with project.connect() as yard:
            token = yard.create_token("worker-1", kind="join").secret
        assert token is not None
        write_secret("join-token", token)
        project.start()
        yield project
    finally:
        project.compose("down", "--volumes")
        left = [podman(kind, "ls", "--quiet") for kind in ("container", "volume")]
        assert not any(left), left

"""The processes of a control plane: their start order, readiness checks, and end."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx

from embedded.broker import Broker, answers, choose_broker
from embedded.child import PYTHON, Child, rotate
from embedded.folders import Folders
from embedded.record import ProcessRecord, end
from trainyard.base.loopback import is_loopback
from trainyard.base.names import default_node_name
from trainyard.client.errors import TrainyardError
from trainyard.client.sdk import Client
from trainyard.outside.http_client import answers_with_success

READY_SECONDS = 90.0
"""Maximum time, in seconds, until a process is ready; long, because imports can be slow."""
END_SECONDS = 15.0
POLL_SECONDS = 0.1
BROKER = "broker"
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all interfaces, each with the loopback address to connect to."""
NOT_PASSED_ON = ("TRAINYARD_TOKEN", "TRAINYARD_JOIN_TOKEN")


class StartError(Exception):
    """The control plane did not start; the text has the reason and, for a process, its log."""


class StopRequestedError(Exception):
    """The user requested the end while processes were still starting."""


@dataclass(frozen=True)
class Address:
    """The address on which the API listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """URL that reaches the API from this machine."""
        host = EVERYWHERE.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the host of `url` is a loopback host.

        For any other host, browsers may write only if TRAINYARD_PUBLIC_URL is set.
        """
        return is_loopback(EVERYWHERE.get(self.host, self.host))


class Stack:
    """Broker, server, scheduler and worker on one data folder.

    Args:
        folders: paths in the data folder.
        address: address on which the API listens.
        slots: number of slots that the worker offers; if None, all detected slots.
        stopping: event that is set when the user requests the end.
        changed: called with the live processes whenever a process starts or ends.
    """

    def __init__(
        self,
        folders: Folders,
        address: Address,
        *,
        slots: int | None,
        stopping: threading.Event,
        changed: Callable[[Mapping[str, ProcessRecord]], None],
    ) -> None:
        self.folders = folders
        self.address = address
        self.children: dict[str, Child] = {}
        self._slots = slots
        self._stopping = stopping
        self._changed = changed
        self._environment: dict[str, str] = {}

    @property
    def records(self) -> dict[str, ProcessRecord]:
        """Identities of the live processes, by name."""
        return {name: c.record for name, c in self.children.items() if c.record is not None}

    def start_server(self) -> Client:
        """Start broker and API; return a connection that uses the admin token.

        Raises:
            StartError: broker or API did not start.
            StopRequestedError: the user requested the end meanwhile.
        """
        broker = self._start_broker()
        self._environment = self._settings(broker)
        self._migrate()
        self._start("server", "server", "api")
        self._wait_for("server", self._is_ready, "the API at " + self.address.url)
        return Client(self.address.url, self._admin_token())

    def start_scheduler(self) -> None:
        """Start the scheduler."""
        self._start("scheduler", "server", "scheduler")

    def start_worker(self, yard: Client) -> None:
        """Start this machine's worker; wait until its node is online.

        Raises:
            StartError: the worker did not start.
            StopRequestedError: the user requested the end meanwhile.
            TrainyardError: the server created no join token.
        """
        checkpoints = os.environ.get("TRAINYARD_CHECKPOINTS") or self.folders.checkpoints
        settings = {
            "TRAINYARD_URL": self.address.url,
            "TRAINYARD_DATA_DIR": str(self.folders.node),
            "TRAINYARD_ROOTS": f"checkpoints={checkpoints},data={self.folders.data}",
            # The label lets this machine's only node fetch packages as well.
            "TRAINYARD_LABELS": os.environ.get("TRAINYARD_LABELS", "network=true"),
        }
        name = os.environ.get("TRAINYARD_NODE_NAME") or default_node_name(socket.gethostname())
        settings["TRAINYARD_NODE_NAME"] = name
        if not (self.folders.node / "node.token").exists():
            token = yard.create_token("embedded-worker", kind="join")
            settings["TRAINYARD_JOIN_TOKEN"] = token.secret or ""
        if self._slots is not None:
            settings["TRAINYARD_SLOTS"] = str(self._slots)
        since = datetime.now(UTC)
        self._start("worker", "worker", **settings)
        self._wait_for(
            "worker",
            lambda: any(
                node.name == name and node.online and node.heartbeat_at >= since
                for node in yard.nodes()
            ),
            "its node to register",
        )

    def check(self) -> None:
        """Check that no process has ended right after its start.

        Raises:
            StartError: a process has ended.
        """
        for name, child in self.children.items():
            if child.exit_code() is not None:
                raise StartError(_failure(f"the {name} ended while it was starting", child))

    def tend(self, notify: Callable[[str], None]) -> None:
        """Restart crashed processes; notify the user of each crash and restart."""
        for child in self.children.values():
            if news := child.tend():
                self._changed(self.records)
                notify(news)

    def end(self, *names: str) -> None:
        """End the named processes, or all of them; the broker ends last, because the others use
        it."""
        chosen = names or tuple(self.children)
        for group in (set(chosen) - {BROKER}, set(chosen) & {BROKER}):
            children = [self.children.pop(name) for name in group if name in self.children]
            records = [child.record for child in children if child.record is not None]
            end(records, grace_seconds=END_SECONDS)
            for child in children:
                child.reap()
            if children:
                self._changed(self.records)

    def _start_broker(self) -> Broker:
        try:
            broker = choose_broker(self.folders.broker)
        except RuntimeError as error:
            raise StartError(str(error)) from None
        if broker.command is None:
            if not answers(broker.url):
                raise StartError("the broker of REDIS_URL does not answer")
            return broker
        self._add(BROKER, broker.command, dict(os.environ))
        self._wait_for(BROKER, lambda: answers(broker.url), "its answer to a ping")
        return broker

    def _settings(self, broker: Broker) -> dict[str, str]:
        """Return the environment of all processes but the broker, without the caller's tokens."""
        passed_on = {k: v for k, v in os.environ.items() if k not in NOT_PASSED_ON}
        public = {} if self.address.is_loopback else {"TRAINYARD_PUBLIC_URL": self.address.url}
        return (
            public
            | passed_on
            | {
                "TRAINYARD_BROKER_URL": broker.url,
                "TRAINYARD_DATABASE_URL": f"sqlite:///{self.folders.database}",
                "TRAINYARD_STATE_DIR": str(self.folders.state),
                "TRAINYARD_HOST": self.address.host,
                "TRAINYARD_PORT": str(self.address.port),
                "PYTHONUNBUFFERED": "1",
            }
        )

    def _migrate(self) -> None:
        log = self.folders.log("migrate")
        rotate(log)
        with log.open("ab") as output:
            done = subprocess.run(
                (*PYTHON, "server", "migrate"),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode:
            child = Child("migrate", (), environment={}, log=log)
            raise StartError(_failure("the database could not be brought up to date", child))

    def _start(self, name: str, *module: str, **settings: str) -> None:
        self._add(name, (*PYTHON, *module), self._environment | settings)

    def _add(self, name: str, command: tuple[str, ...], environment: dict[str, str]) -> None:
        child = Child(name, command, environment=environment, log=self.folders.log(name))
        child.start()
        self.children[name] = child
        self._changed(self.records)

    def _wait_for(self, name: str, ready: Callable[[], bool], what: str) -> None:
        child = self.children[name]
        deadline = time.monotonic() + READY_SECONDS
        while True:
            if child.exit_code() is not None:
                raise StartError(_failure(f"the {name} ended while it was starting", child))
            missing = _missing(ready)
            if missing is None:
                return
            if time.monotonic() > deadline:
                text = f"{what} was not ready after {READY_SECONDS:g} s: {missing}"
                raise StartError(_failure(text, child))
            if self._stopping.wait(POLL_SECONDS):
                raise StopRequestedError

    def _is_ready(self) -> bool:
        url = self.address.url
        return answers_with_success(f"{url}/readyz", seconds=5)

    def _admin_token(self) -> str:
        try:
            return self.folders.admin_token.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise StartError(
                f"cannot read the admin token: {error}. `python -m server admin-token` makes a new "
                f"one, which belongs into {self.folders.admin_token}"
            ) from None


def _missing(ready: Callable[[], bool]) -> str | None:
    """Return why a process is not ready; None once it is ready."""
    try:
        return None if ready() else "it gives a different answer"
    except (httpx.TransportError, TrainyardError) as error:
        return str(error) or type(error).__name__


def _failure(text: str, child: Child) -> str:
    lines = child.last_lines()
    shown = "".join(f"\n  {line}" for line in lines.splitlines())
    return f"{text}. The end of {child.log}:{shown}" if shown else f"{text}; see {child.log}"

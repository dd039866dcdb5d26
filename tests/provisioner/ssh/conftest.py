"""Machines in folders, reached by a stand-in for `ssh`."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from provisioner.base import Place, Shape, Submission
from provisioner.ssh.hosts import SshOptions
from provisioner.ssh.source import SshSource
from trainyard.base.ids import make_id

HERE = Path(__file__).parent
SECONDS = 60.0
NUMBERS = count(1)
Found = TypeVar("Found")


def wait_for(look: Callable[[], Found | None], what: str) -> Found:
    """Return the first truthy result of `look`."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"no {what} after {SECONDS} s")


def new_id() -> str:
    """Return an id of a request."""
    return make_id(milliseconds=next(NUMBERS), entropy=os.urandom(10))


def submission(folder: Path, *, nodes: int = 1, **changes: Any) -> Submission:
    """Return a claimed request with its secrets in a folder."""
    request_id = changes.pop("request_id", None) or new_id()
    secrets = folder / f"{request_id}.secrets"
    secrets.write_text("".join(f"secret-{i}-of-{request_id}\n" for i in range(nodes)))
    secrets.chmod(0o600)
    return Submission(
        request_id=request_id,
        purpose="nodes",
        shape=Shape(nodes=nodes, slots=4, device="cpu"),
        seconds=changes.pop("seconds", None),
        secrets=secrets,
        environment={"TRAINYARD_URL": "https://server", "TRAINYARD_LABELS": "a='b c',d=e"},
    )


@dataclass
class Network:
    """Machines, and the access of a source to them."""

    folder: Path
    python: Path

    def add(self, *hosts: str) -> None:
        """Add machines."""
        for host in hosts:
            (self.folder / host / "bin").mkdir(parents=True)

    def source(self, *hosts: str, name: str = "lab", **options: Any) -> SshSource:
        """Return a source of these machines."""
        state = self.folder / f"{name}.state"
        state.mkdir(mode=0o700, exist_ok=True)
        python = str(options.pop("python", self.python))
        ssh = [str(HERE / "fake_ssh.sh"), "-F", str(self.folder)]
        values = {"hosts": list(hosts), "ssh": ssh, "base": "~/yard", **options}
        place = Place(name=name, python=python, folder=state)
        return SshSource(place, SshOptions.model_validate(values))

    def request(self, host: str, request_id: str) -> Path:
        """Return the folder of a request on a machine."""
        return self.folder / host / "yard" / "requests" / request_id

    def pid(self, host: str, request_id: str) -> int:
        """Return the pid of a pilot's first process."""
        return int((self.request(host, request_id) / "instance").read_text().split(".")[1])

    def kill_all(self) -> None:
        """Kill every pilot and its remaining processes."""
        for instance in self.folder.glob("*/yard/requests/*/instance"):
            mark = instance.parent.name.encode()
            for environ in Path("/proc").glob("[0-9]*/environ"):
                try:
                    if mark in environ.read_bytes():
                        os.kill(int(environ.parent.name), signal.SIGKILL)
                except OSError:
                    continue


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """A network without machines; pilots of it end with the test."""
    monkeypatch.setenv("REAL_PYTHON", sys.executable)
    python = tmp_path / "python3"
    shutil.copy(HERE / "stand_in.sh", python)
    folder = tmp_path / "network"
    folder.mkdir()
    made = Network(folder, python)
    yield made
    made.kill_all()

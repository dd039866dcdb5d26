"""Idle processes on the node of a test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.worker.conftest import HERE, Place, wait_for
from worker.launchers.warm.fork_client import environment_of_imports
from worker.node.process_identity import identify
from worker.warm.hand_over import SOCKET


@dataclass
class Idle:
    """Idle processes on the node of a test, with another process as their worker."""

    place: Place
    worker: subprocess.Popen[bytes]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ready: bool = False
    """Whether the last process waits for launches."""

    @property
    def output(self) -> str:
        """Return their output."""
        return (self.place.folder / "idle.out").read_text()

    def start(
        self, *packages: str, module: str = "tests.worker.warm.succeeding"
    ) -> subprocess.Popen[bytes]:
        """Start one, and return it when it waits for launches."""
        idle = self.begin(*packages, module=module)
        assert self.ready, self.output
        wait_for((self.place.node.data_dir / SOCKET).exists, "socket of the idle process")
        return idle

    def begin(
        self, *packages: str, module: str, import_seconds: float = 300.0
    ) -> subprocess.Popen[bytes]:
        """Start one, and return it when it waits or has ended; `ready` is whether it waits."""
        identity = identify(self.worker.pid)
        assert identity is not None
        own, its = socket.socketpair()
        words = [str(self.place.node.data_dir), str(identity.pid), str(identity.start_time)]
        threads = self.place.local.devices.threads_per_slot
        marked = environment_of_imports(node=self.place.local.name, threads=threads)
        with own, its, (self.place.folder / "idle.out").open("ab") as log:
            idle = subprocess.Popen(
                [
                    *(sys.executable, str(HERE / "warm" / "run_idle.py"), *words),
                    *(str(its.fileno()), module, str(import_seconds), *packages),
                ],
                env=marked,
                pass_fds=[its.fileno()],
                stdout=log,
                stderr=log,
            )
            its.close()
            self.started.append(idle)
            self.ready = own.recv(1) == b"r"
        return idle


@pytest.fixture
def idle(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Idle]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(HERE.parents[1]), str(place.folder))))
    made = Idle(place, subprocess.Popen(["sleep", "600"]))
    yield made
    for process in (*made.started, made.worker):
        process.kill()
        process.wait()

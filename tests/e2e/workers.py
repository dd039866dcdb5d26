"""Further workers of a control plane, next to the one that `up` keeps running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.control_plane import REPOSITORY, ControlPlane, processes_with, wait_for
from trainyard.client.sdk import Client

MARK = "E2E_NODE"
"""Variable that all processes of a worker inherit, unlike those of Trainyard."""


@dataclass(frozen=True)
class Worker:
    """A worker of a node, and its processes and files on the machine."""

    name: str
    data: Path
    log: Path
    process: subprocess.Popen[bytes]

    def processes(self) -> list[int]:
        """Return every process of the node: the worker, its supervisors and their ranks."""
        return processes_with(f"{MARK}={self.name}")

    def kill_all(self) -> None:
        """Kill every process of the node together, like a power loss."""

        def gone() -> bool:
            for pid in (left := self.processes()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()  # reaps it
            return not left

        wait_for(gone, f"end of all processes of {self.name}")


@contextlib.contextmanager
def drained_plane(root: Path) -> Iterator[ControlPlane]:
    """Run a control plane with its own node drained: jobs run on the nodes of the tests."""
    made = ControlPlane(root)
    try:
        with made.connect() as yard:
            yard.drain(made.node)
        yield made
    finally:
        made.end()


@contextlib.contextmanager
def started_worker(
    plane: ControlPlane,
    data: Path,
    *,
    name: str,
    python: Sequence[str] = (sys.executable,),
    **environment: str,
) -> Iterator[Worker]:
    """Run a worker with the plane's settings, except this data folder and these changes."""
    own = Path(f"/proc/{plane.part('worker').pid}/environ").read_bytes().decode()
    known = dict(pair.partition("=")[::2] for pair in own.split("\0") if pair)
    changes = {"TRAINYARD_DATA_DIR": str(data), "TRAINYARD_NODE_NAME": name, MARK: name}
    log = data.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*python, "-m", "worker"],
            env={**known, **changes, **environment},
            cwd=REPOSITORY,
            stdout=output,
            stderr=output,
        )
    try:
        yield Worker(name, data, log, process)
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def joined_node(
    plane: ControlPlane,
    yard: Client,
    data: Path,
    *,
    python: Sequence[str] = (sys.executable,),
    **environment: str,
) -> Iterator[Worker]:
    """Add a node with access to the plane's storage; all its processes end with the block."""
    name = f"{plane.node}-{data.name}"
    data.mkdir()
    secret = yard.create_token(name, kind="join").secret
    assert secret is not None
    joining = {"TRAINYARD_JOIN_TOKEN": secret, **environment}
    with started_worker(plane, data, name=name, python=python, **joining) as worker:

        def online() -> bool:
            assert worker.process.poll() is None, worker.log.read_text()
            return any(node.online for node in yard.nodes() if node.name == name)

        wait_for(online, f"node {name}")
        try:
            yield worker
        finally:
            worker.kill_all()

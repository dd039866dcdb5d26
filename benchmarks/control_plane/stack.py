"""An embedded control plane of its own, for benchmarks of the whole: started, used, ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from embedded.folders import Folders
from embedded.record import read_record
from trainyard.client.errors import TrainyardError
from trainyard.client.sdk import Client
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.states import JobState
from worker.node.node_store import WorkerRun

PACKAGES = ("celery", "fastapi", "httpx", "pydantic", "sqlalchemy", "torch", "uvicorn")
READY_SECONDS = 120
END_SECONDS = 60


@dataclass(frozen=True)
class Running:
    """A control plane that runs."""

    yard: Client
    folders: Folders

    def run(self, job: JobView) -> WorkerRun:
        """Return the run directory of the first attempt of a job."""
        return WorkerRun(self.folders.node / "runs" / job.id / "1")

    def succeed(self, job: JobView, *, timeout: float) -> None:
        """Wait until a job has succeeded.

        Raises:
            RuntimeError: it ended in another way.
            TimeoutError: it did not end in time.
        """
        ended = self.yard.wait(job.id, timeout=timeout, poll_seconds=0.5)
        if ended.state is not JobState.SUCCEEDED:
            raise RuntimeError(f"job {job.name} is {ended.state}: {ended.reason}")


@contextmanager
def stack() -> Iterator[Running]:
    """Run `embedded up` on a new folder; ends all that it started, and removes the folder."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        folders = Folders(Path(name) / "data")
        folders.make()
        # The user's own connection stays as it is.
        environment = os.environ | {"XDG_CONFIG_HOME": name}
        command = [sys.executable, "-m", "embedded"]
        place = ["--data", str(folders.root)]
        with folders.log("up").open("ab") as log:
            up = subprocess.Popen(
                [*command, "up", *place],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            with _connected(folders, up) as yard:
                yield Running(yard, folders)
        finally:
            subprocess.run(
                [*command, "down", *place], env=environment, stdout=subprocess.DEVNULL, check=False
            )
            up.wait(END_SECONDS)


def _connected(folders: Folders, up: subprocess.Popen[bytes]) -> Client:
    """Return a connection once everything is up: the user's token is written at the very end."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and up.poll() is None:
        record = read_record(folders.record)
        if record is not None and folders.user_token.exists():
            token = folders.user_token.read_text(encoding="utf-8").strip()
            yard = Client(record.url, token or None)
            with contextlib.suppress(TrainyardError):
                if any(node.online for node in yard.nodes()):
                    return yard
            yard.close()
        time.sleep(0.2)
    log = folders.log("up").read_text(encoding="utf-8")
    raise RuntimeError(f"the control plane did not start: {log}")

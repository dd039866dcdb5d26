"""A separate embedded control plane for benchmarks of the whole: started, used, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from embedded.folders import Folders
from embedded.record import identify, read_record
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
    """A running control plane."""

    yard: Client
    folders: Folders
    up: subprocess.Popen[bytes]
    """The process that restarts the others."""
    is_warm: bool = True
    """Whether its worker keeps an idle process."""

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
    def killed_server(self) -> Iterator[None]:
        """Kill the server with SIGKILL; it starts again on the same data after the block.

        Raises:
            TimeoutError: it does not answer in time afterwards.
        """
        record = read_record(self.folders.record)
        assert record is not None
        server = record.processes["server"]
        self.up.send_signal(signal.SIGSTOP)  # otherwise it would restart the server immediately
        try:
            os.kill(server.pid, signal.SIGKILL)
            yield
        finally:
            self.up.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            now = read_record(self.folders.record)
            again = None if now is None else now.processes.get("server")
            if again is not None and again != server and identify(again.pid) == again:
                with contextlib.suppress(TrainyardError):
                    list(self.yard.nodes())
                    return
            time.sleep(0.2)
        raise TimeoutError(f"the server did not answer again within {READY_SECONDS} s")


@contextmanager
def stack(*, slots: int | None = None, **settings: str) -> Iterator[Running]:
    """Run `embedded up` on a new folder; end all its processes and remove the folder.

    Args:
        slots: slots of its node; all that the machine offers by default.
        settings: variables of the environment, without `TRAINYARD_`.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        folders = Folders(Path(name) / "data")
        folders.make()
        # The user's own connection stays unchanged.
        environment = os.environ | {"XDG_CONFIG_HOME": name}
        environment |= {f"TRAINYARD_{key}": value for key, value in settings.items()}
        command = [sys.executable, "-m", "embedded"]
        place = ["--data", str(folders.root)]
        with folders.log("up").open("ab") as log:
            up = subprocess.Popen(
                [*command, "up", *place, *(() if slots is None else ("--slots", str(slots)))],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            with _connected(folders, up) as yard:
                warm = environment.get("TRAINYARD_WARM", "true") == "true"
                yield Running(yard, folders, up, is_warm=warm)
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

